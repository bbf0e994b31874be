"""Runs the conformance checks on an engine, one after the other, each under a deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from roll_rollout.conformance import lifecycle_checks, sampling_checks, weight_checks
from roll_rollout.conformance.bench import Bench, Check, Policy
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError

CHECKS: dict[str, Check] = {
    "logprobs_agree_with_scorer": sampling_checks.logprobs_agree_with_scorer,
    "seeds_reproduce": sampling_checks.seeds_reproduce,
    "greedy_ignores_seeds": sampling_checks.greedy_ignores_seeds,
    "max_tokens_ends_with_length": sampling_checks.max_tokens_ends_with_length,
    "stop_ids_end_and_stay": sampling_checks.stop_ids_end_and_stay,
    "every_request_ends_once": sampling_checks.every_request_ends_once,
    "abort_keeps_partial_tokens": lifecycle_checks.abort_keeps_partial_tokens,
    "abort_reaches_unstarted_requests": lifecycle_checks.abort_reaches_unstarted_requests,
    "cancelled_calls_leave_nothing": lifecycle_checks.cancelled_calls_leave_nothing,
    "load_counts_requests": lifecycle_checks.load_counts_requests,
    "ids_in_flight_are_refused": lifecycle_checks.ids_in_flight_are_refused,
    "updates_reach_the_engine": weight_checks.updates_reach_the_engine,
    "running_requests_cross_updates": weight_checks.running_requests_cross_updates,
    "wrong_updates_change_nothing": weight_checks.wrong_updates_change_nothing,
    "close_ends_all_requests": lifecycle_checks.close_ends_all_requests,
}
"""All checks by name, in the order in which they run. The last closes the engine."""

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
) -> list[CheckResult]:
    """Runs the suite on one engine and closes it.

    Args:
        make_engine: Makes the engine, with the weights of `policies[0]`. Called once.
        policies: Two sets of weights for it that give different log-probs, with a plain scorer each.
        prompts: At least two distinct prompts of a few tokens, with room for `long_tokens` more.
        max_context: The engine's limit on prompt and completion; None leaves out the check of it.
        tolerance: Largest difference of log-probs; take the dtype of the model into account.
        long_tokens: Length of a completion that takes the engine long enough to be aborted or updated on
            its way.
        deadline_s: Longest time for one check.
        skip: Checks to leave out, such as "seeds_reproduce" for an engine that cannot.

    Returns:
        One result a check, in order.

    Raises:
        EngineError: `skip` names no check, or there are fewer than two prompts.
    """
    unknown = set(skip) - {*CHECKS, "long_prompts_are_refused"}
    if unknown:
        raise EngineError(f"check_engine: skip has {sorted(unknown)}, allowed are {sorted(CHECKS)}")
    if len(prompts) < 2:
        raise EngineError(f"check_engine: {len(prompts)} prompts, allowed are 2 or more")
    checks = dict(CHECKS)
    if max_context is not None:
        closing = checks.pop(_CLOSING)
        checks["long_prompts_are_refused"] = lifecycle_checks.long_prompts_are_refused(max_context)
        checks[_CLOSING] = closing
    engine = await make_engine()
    bench = Bench(engine, policies=policies, prompts=prompts, tolerance=tolerance, long_tokens=long_tokens)
    try:
        return [
            await _run(name, check, bench, deadline_s) for name, check in checks.items() if name not in skip
        ]
    finally:
        await engine.close()


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
