"""The suite that any `Grader` can be run through, ours and third parties'."""

import math
import pickle
from dataclasses import dataclass

from roll_rewards.deadlines import GradeItem, grade_with_deadline
from roll_rewards.grader import Grader
from roll_rewards.scores import Score

HOSTILE_RESPONSES = (
    "", " ", "\x00", "\ud800", "<answer>", "}{" * 500, "9" * 100_000, "1e999999999", "a" * 100_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check of the suite.

    Example: `CheckResult(name="repeatable", passed=False, detail="1.0, then 0.0")`.

    Attributes:
        name: What was checked.
        passed: Whether the grader does it.
        detail: What was seen; empty when there is nothing to say.
    """

    name: str
    passed: bool
    detail: str = ""


async def check_grader(grader: Grader, item: GradeItem, *, deadline_s: float = 10.0) -> list[CheckResult]:
    """Whether a grader keeps the promises of its seam.

    Args:
        grader: The grader to check.
        item: A response with its reference that the grader can judge.
        deadline_s: Seconds for each call, above 0.

    Returns:
        The checks, in this order: `verdict` (a finite score for the item), `repeatable` (the same
        verdict again), `hostile_responses` (a verdict, without failure, whatever the policy says),
        `unknown_columns` (a column that it does not know changes nothing) and `picklable` (it can be
        sent to a worker process and judges alike there).
    """

    async def score(response: str, *, using: Grader = grader, **extra: object) -> Score:
        columns = {**item.columns, **extra}
        return await grade_with_deadline(using, response, item.reference, deadline_s=deadline_s, **columns)

    first = await score(item.response)
    results = [CheckResult(name="verdict", passed=math.isfinite(first.value), detail=_seen(first))]
    again = await score(item.response)
    results.append(_alike("repeatable", first, again))
    bad = []
    for response in HOSTILE_RESPONSES:
        answer = await score(response)
        if answer.failure is not None:
            bad.append(f"{response[:20]!r}: {_seen(answer)}")
    results.append(CheckResult(name="hostile_responses", passed=not bad, detail="; ".join(bad)))
    results.append(_alike("unknown_columns", first, await score(item.response, a_column_nobody_knows=1)))
    try:
        copy = pickle.loads(pickle.dumps(grader))
    except Exception as error:
        # Boundary to foreign code: pickling calls into the grader.
        results.append(CheckResult(name="picklable", passed=False, detail=f"{type(error).__name__}: {error}"))
    else:
        results.append(_alike("picklable", first, await score(item.response, using=copy)))
    return results


def _alike(name: str, first: Score, second: Score) -> CheckResult:
    same = first.value == second.value and first.parsed == second.parsed
    return CheckResult(name=name, passed=same, detail="" if same else f"{_seen(first)}, then {_seen(second)}")


def _seen(score: Score) -> str:
    return str(score.value) if score.failure is None else f"{score.failure.kind}: {score.failure.message}"
