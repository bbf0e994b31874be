"""Runs the conformance checks on an engine, one after the other, each under a deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from roll_rollout.conformance import (
    adapter_checks,
    control_checks,
    lifecycle_checks,
    request_checks,
    sampling_checks,
    weight_checks,
)
from roll_rollout.conformance.bench import AdapterPolicy, Bench, Check, Policy
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError
from roll_rollout.stop_strings import Decode

CHECKS: dict[str, Check] = {
    "logprobs_agree_with_scorer": sampling_checks.logprobs_agree_with_scorer,
    "seeds_reproduce": sampling_checks.seeds_reproduce,
    "greedy_ignores_seeds": sampling_checks.greedy_ignores_seeds,
    "max_tokens_ends_with_length": sampling_checks.max_tokens_ends_with_length,
    "stop_ids_end_and_stay": sampling_checks.stop_ids_end_and_stay,
    "stop_strings_cut": request_checks.stop_strings_cut,
    "every_request_ends_once": sampling_checks.every_request_ends_once,
    "abort_keeps_partial_tokens": lifecycle_checks.abort_keeps_partial_tokens,
    "abort_reaches_unstarted_requests": lifecycle_checks.abort_reaches_unstarted_requests,
    "cancelled_calls_leave_nothing": lifecycle_checks.cancelled_calls_leave_nothing,
    "load_counts_requests": lifecycle_checks.load_counts_requests,
    "ids_in_flight_are_refused": lifecycle_checks.ids_in_flight_are_refused,
    "unsupported_requests_are_refused": request_checks.unsupported_requests_are_refused,
    "updates_reach_the_engine": weight_checks.updates_reach_the_engine,
    "running_requests_cross_updates": weight_checks.running_requests_cross_updates,
    "wrong_updates_change_nothing": weight_checks.wrong_updates_change_nothing,
    "groups_share_their_prefill": request_checks.groups_share_their_prefill,
    "streams_are_the_completion": request_checks.streams_are_the_completion,
    "partial_completions_go_on": request_checks.partial_completions_go_on,
    "pause_keeps_requests": control_checks.pause_keeps_requests,
    "pause_aborts_requests": control_checks.pause_aborts_requests,
    "pause_waits_for_requests": control_checks.pause_waits_for_requests,
    "sleeping_engines_wake": control_checks.sleeping_engines_wake,
    "prefix_cache_is_forgotten": control_checks.prefix_cache_is_forgotten,
    "healthy_engines_say_so": control_checks.healthy_engines_say_so,
    "adapters_draw_their_own": adapter_checks.adapters_draw_their_own,
    "running_requests_cross_swaps": adapter_checks.running_requests_cross_swaps,
    "adapters_are_unloaded": adapter_checks.adapters_are_unloaded,
    "close_ends_all_requests": lifecycle_checks.close_ends_all_requests,
}
"""All checks by name, in the order in which they run. The last closes the engine."""

NEEDS: dict[str, Callable[[Bench], bool]] = {
    "logprobs_agree_with_scorer": lambda bench: bench.capabilities.logprobs,
    "seeds_reproduce": lambda bench: bench.capabilities.seeds,
    "stop_strings_cut": lambda bench: bench.capabilities.stop_strings and bench.decode is not None,
    "updates_reach_the_engine": lambda bench: bench.capabilities.weight_updates,
    "running_requests_cross_updates": lambda bench: bench.capabilities.weight_updates,
    "wrong_updates_change_nothing": lambda bench: bench.capabilities.weight_updates,
    "groups_share_their_prefill": lambda bench: bench.capabilities.shared_prefill,
    "streams_are_the_completion": lambda bench: bench.capabilities.streaming,
    "partial_completions_go_on": lambda bench: bench.capabilities.continuation != "none",
    "pause_keeps_requests": lambda bench: "keep" in bench.capabilities.pause_modes,
    "pause_aborts_requests": lambda bench: "abort" in bench.capabilities.pause_modes,
    "pause_waits_for_requests": lambda bench: "wait" in bench.capabilities.pause_modes,
    "sleeping_engines_wake": lambda bench: bool(bench.capabilities.sleep_levels),
    "prefix_cache_is_forgotten": lambda bench: bench.capabilities.prefix_cache,
    "healthy_engines_say_so": lambda bench: bench.capabilities.health,
    "adapters_draw_their_own": lambda bench: bench.capabilities.adapters and bench.adapters is not None,
    "running_requests_cross_swaps": lambda bench: bench.capabilities.adapters and bench.adapters is not None,
    "adapters_are_unloaded": lambda bench: bench.capabilities.adapters and bench.adapters is not None,
}
"""Checks that run only where the engine claims something, and the caller gives what they take."""

_CLOSING = "close_ends_all_requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check, for example `CheckResult(name="seeds_reproduce", passed=True, detail="")`.

    Attributes:
        name: Key of `CHECKS`, or "long_prompts_are_refused".
        passed: Whether the engine conforms.
        detail: What it did instead.
    """

    name: str
    passed: bool
    detail: str


async def check_engine(
    make_engine: Callable[[], Awaitable[Engine]],
    *,
    policies: tuple[Policy, Policy],
    prompts: Sequence[np.ndarray],
    max_context: int | None = None,
    tolerance: float = 1e-4,
    long_tokens: int = 256,
    deadline_s: float = 60.0,
    skip: Collection[str] = (),
    group_prompt_tokens: int = 32,
    decode: Decode | None = None,
    adapters: tuple[AdapterPolicy, AdapterPolicy] | None = None,
) -> list[CheckResult]:
    """Runs the suite on one engine and closes it.

    What an engine claims beyond the five methods of `Engine` (`EngineCapabilities`) is checked; checks of
    what it does not claim are left out of the results.

    Args:
        make_engine: Makes the engine, with the weights of `policies[0]`. Called once.
        policies: Two sets of weights for it that give different log-probs, with a plain scorer each.
        prompts: At least two distinct prompts of a few tokens, with room for `long_tokens` more.
        max_context: The engine's limit on prompt and completion; None leaves out the check of it.
        tolerance: Largest difference of log-probs; take the dtype of the model into account.
        long_tokens: Length of a completion that takes the engine long enough to be aborted or updated on
            its way.
        deadline_s: Longest time for one check.
        skip: Checks to leave out.
        group_prompt_tokens: Length of the prompt that a group shares; more than the engine caches at once.
        decode: Ids to text, special tokens included; None leaves out the check of stop strings.
        adapters: Two adapters with different weights on the first policy; None leaves out their checks.

    Returns:
        One result a check, in order.

    Raises:
        EngineError: `skip` names no check, or there are fewer than two prompts.
    """
    _refuse_arguments(skip, prompts)
    engine = await make_engine()
    bench = Bench(
        engine,
        policies=policies,
        prompts=prompts,
        tolerance=tolerance,
        long_tokens=long_tokens,
        group_prompt_tokens=group_prompt_tokens,
        decode=decode,
        adapters=adapters,
    )
    checks = _selected(bench, max_context)
    try:
        return [
            await _run(name, check, bench, deadline_s) for name, check in checks.items() if name not in skip
        ]
    finally:
        await engine.close()


def _refuse_arguments(skip: Collection[str], prompts: Sequence[np.ndarray]) -> None:
    unknown = set(skip) - {*CHECKS, "long_prompts_are_refused"}
    if unknown:
        raise EngineError(f"check_engine: skip has {sorted(unknown)}, allowed are {sorted(CHECKS)}")
    if len(prompts) < 2:
        raise EngineError(f"check_engine: {len(prompts)} prompts, allowed are 2 or more")


def _selected(bench: Bench, max_context: int | None) -> dict[str, Check]:
    """Returns the checks that the engine's claims and the caller's arguments call for, in order."""
    checks = {name: check for name, check in CHECKS.items() if name not in NEEDS or NEEDS[name](bench)}
    if max_context is not None:
        closing = checks.pop(_CLOSING)
        checks["long_prompts_are_refused"] = lifecycle_checks.long_prompts_are_refused(max_context)
        checks[_CLOSING] = closing
    return checks


async def _run(name: str, check: Check, bench: Bench, deadline_s: float) -> CheckResult:
    detail = await _violation(check(bench), deadline_s)
    left = await _violation(bench.settle(), deadline_s)
    return CheckResult(name=name, passed=not detail and not left, detail=detail or left)


async def _violation(work: Awaitable[None], deadline_s: float) -> str:
    """Returns what went wrong, or an empty string."""
    try:
        async with asyncio.timeout(deadline_s):
            await work
    except TimeoutError:
        return f"not done after {deadline_s} s"
    except Exception as error:  # boundary: whatever the engine under test raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""
