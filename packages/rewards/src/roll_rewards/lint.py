"""What a grader pays for: it is fed what a policy will try, and whatever is wrong is said.

`roll-grade check` prints the report; `lint_grader` is for tests of one's own graders.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from roll_rewards.deadlines import grade_with_deadline
from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.probes import Probe, probes_for
from roll_rewards.scores import Score

_REPEATS = 3
_SLOW_S = 5.0
_BLOCKED_S = 0.5
_TICK_S = 0.02
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a grader said of a probe.

    Example: `Observation(probe=probe, scores=(score, score, score), blocked_s=0.0)`.

    Attributes:
        probe: What it was fed.
        scores: Its scores, one for each repetition.
        blocked_s: How long the event loop stood still each time, in seconds.
    """

    probe: Probe
    scores: tuple[Score, ...]
    blocked_s: float

    @property
    def value(self) -> float:
        """The first score's value, NaN for a failure."""
        return self.scores[0].value

    @property
    def seconds(self) -> float:
        """The longest time that a score took."""
        return max(score.seconds for score in self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Everything that was seen, and what is wrong with it.

    Attributes:
        observations: One for each probe, in their order.
        errors: What must be mended: it pays for nothing, pays right answers no more than junk, breaks,
            blocks, or says different things of the same response.
        warnings: What may be meant: it pays for an answer hidden among others, or is slow.
    """

    observations: tuple[Observation, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


async def lint_grader(
    grader: Grader, row: Mapping[str, object], *, gold: str | None = None, deadline_s: float = 60.0
) -> LintReport:
    """What a grader pays for.

    Args:
        grader: Any grader.
        row: A row of its data: `reference` is the gold answer, `prompt` is echoed, the rest are columns.
        gold: A response that deserves full marks; None makes some from the reference.
        deadline_s: Seconds for each score.

    Raises:
        RewardError: There is neither a gold response nor a reference to make one from.
    """
    reference = row.get("reference")
    if gold is None and not isinstance(reference, str | int | float):
        raise RewardError(
            "a check needs a row with a text or a number under 'reference', or a response in 'gold', "
            f"got {reference!r:.80}"
        )
    columns = {key: value for key, value in row.items() if key not in ("reference", "response")}
    # The first score may start processes or load a model; that time says nothing about the others.
    await grade_with_deadline(grader, gold or str(reference), reference, deadline_s=deadline_s, **columns)
    observations = []
    for probe in probes_for(reference, columns.get("prompt"), gold):
        observations.append(await _observe(grader, probe, reference, columns, deadline_s))
    errors, warnings = _judged(observations)
    return LintReport(observations=tuple(observations), errors=tuple(errors), warnings=tuple(warnings))


def report(result: LintReport) -> str:
    """A table of probes with values and times, and the findings below it."""
    rows = [f"{'probe':<24} {'value':>8} {'seconds':>8}  parsed"]
    for seen in result.observations:
        failure = seen.scores[0].failure
        value = failure.kind if failure is not None else f"{seen.value:.3g}"
        parsed = seen.scores[0].parsed
        shown = "" if parsed is None else repr(parsed)[:40]
        rows.append(f"{seen.probe.name:<24} {value:>8} {seen.seconds:>8.3f}  {shown}")
    rows += [f"ERROR   {text}" for text in result.errors]
    rows += [f"warning {text}" for text in result.warnings]
    rows.append("no finding" if not result.errors and not result.warnings else f"{len(result.errors)} errors")
    return "\n".join(rows)


async def _observe(
    grader: Grader, probe: Probe, reference: object, columns: Mapping[str, object], deadline_s: float
) -> Observation:
    scores, blocked = [], []
    for _ in range(_REPEATS):
        gaps = _Gaps()
        watch = asyncio.ensure_future(gaps.watch())
        try:
            await asyncio.sleep(0)
            scores.append(
                await grade_with_deadline(grader, probe.response, reference, deadline_s=deadline_s, **columns)
            )
            await asyncio.sleep(0)
        finally:
            watch.cancel()
        await asyncio.wait({watch})
        blocked.append(gaps.longest_s)
    # A grader that blocks does so each time; a busy machine does not.
    return Observation(probe=probe, scores=tuple(scores), blocked_s=min(blocked))


class _Gaps:
    """How long the event loop stood still."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            try:
                await asyncio.sleep(_TICK_S)
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - before - _TICK_S)


def _judged(observations: list[Observation]) -> tuple[list[str], list[str]]:
    errors, warnings = [], []
    paid = [
        seen.value for seen in observations if seen.probe.kind == "right" and seen.scores[0].failure is None
    ]
    unpaid = [
        seen.value for seen in observations if seen.probe.kind == "nothing" and seen.value == seen.value
    ]
    best, floor = max(paid, default=float("nan")), min(unpaid, default=0.0)
    if not paid:
        errors.append("it gives no verdict on any right response: see the failures above")
    elif best <= max(floor, 0.0) + _EPSILON:
        errors.append(f"it pays no right response more than nothing: at most {best:.3g}")
    for seen in observations:
        if seen.probe.kind == "nothing" and seen.value > floor + _EPSILON and seen.value >= best / 2 > 0:
            about = f"pays {seen.value:.3g} for a response without an answer ({seen.probe.about})"
            errors.append(f"{seen.probe.name}: {about}")
        warnings += _warnings_of(seen, best, floor)
    return errors + _faults(observations), warnings


def _faults(observations: list[Observation]) -> list[str]:
    """What is wrong whatever is paid: each fault once, with the probes that show it."""
    shown: dict[str, list[str]] = {}
    for seen in observations:
        failure = next((score.failure for score in seen.scores if score.failure is not None), None)
        if failure is not None and seen.probe.kind != "right":
            said = f"no verdict on what a policy may say ({failure.kind}: {failure.message[:150]})"
            shown.setdefault(f"failure {failure.kind}", [said]).append(seen.probe.name)
        if failure is None and len({score.value for score in seen.scores}) > 1:
            values = ", ".join(f"{score.value:.3g}" for score in seen.scores)
            said = f"different values for the same response ({values})"
            shown.setdefault("unsteady", [said]).append(seen.probe.name)
        if seen.blocked_s > _BLOCKED_S:
            said = f"blocks the event loop ({seen.blocked_s:.2g} s); run it in a thread or a process"
            shown.setdefault("blocking", [said]).append(seen.probe.name)
    return [f"{said}: {', '.join(probes)}" for said, *probes in shown.values()]


def _warnings_of(seen: Observation, best: float, floor: float) -> list[str]:
    name, found = seen.probe.name, []
    if seen.probe.kind == "hack" and seen.value > floor + _EPSILON and seen.value >= best / 2 > 0:
        found.append(f"{name}: pays {seen.value:.3g} ({seen.probe.about})")
    if seen.probe.kind == "right" and seen.value < best - _EPSILON:
        found.append(f"{name}: pays {seen.value:.3g}, other right responses {best:.3g} ({seen.probe.about})")
    if seen.seconds > _SLOW_S:
        found.append(f"{name}: takes {seen.seconds:.2g} s")
    return found
