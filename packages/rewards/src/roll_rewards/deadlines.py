"""Grading that always ends, with a verdict or with a named failure. Called by reward workers."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.scores import Score, failed

_log = logging.getLogger(__name__)

# How long a cancelled grader may clean up (kill a child process) before it is left behind.
_CLEANUP_S = 1.0
_MESSAGE_CHARS = 2000
_RESERVED = ("response", "reference", "grader", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeItem:
    """One response to grade.

    Example: `GradeItem(response="6 * 7 = 42", reference="42", columns={"domain": "sums"})`.

    Attributes:
        response: The text the policy produced.
        reference: What the data set says is right.
        columns: Further columns of the row, given to the grader by name.

    Raises:
        RewardError: A column has a name that grading itself uses.
    """

    response: str
    reference: object
    columns: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clash = sorted(set(_RESERVED) & set(self.columns))
        if clash:
            raise RewardError(f"columns named {', '.join(clash)} clash with grading's own; rename them")


async def grade_with_deadline(
    grader: Grader, response: str, reference: object, *, deadline_s: float, **columns: object
) -> Score:
    """The score of one response; it comes within the deadline plus a second, whatever the grader does.

    A grader that blocks the event loop cannot be stopped from here; ours never do.

    Args:
        grader: Any grader.
        response: The text the policy produced.
        reference: What the data set says is right.
        deadline_s: Seconds until the grader is cancelled and given up, above 0.
        **columns: Further columns of the row.

    Returns:
        The grader's score with `seconds` filled in. Without a verdict its value is NaN and its
        failure says `deadline`, `error` (the grader raised) or `invalid` (not a `Score`, or a value
        or part that is not finite).

    Raises:
        asyncio.CancelledError: The caller was cancelled; nothing else is raised.
    """
    name = type(grader).__name__
    if not deadline_s > 0:
        return failed("deadline", f"{name} was given no time: deadline_s must be above 0, got {deadline_s}")
    clock = asyncio.get_running_loop().time
    started = clock()
    task = asyncio.ensure_future(_grade(grader, response, reference, columns))
    try:
        finished, _ = await asyncio.wait({task}, timeout=deadline_s)
    except asyncio.CancelledError:
        await _abandon(task)
        raise
    seconds = clock() - started
    if not finished:
        await _abandon(task)
        return failed("deadline", f"{name} gave no score within {deadline_s:g} s", seconds=clock() - started)
    if task.cancelled():
        return failed("error", f"{name} cancelled itself", seconds=seconds)
    error = task.exception()
    if error is not None:
        _log.debug("%s raised", name, exc_info=error)
        message = f"{name} raised {type(error).__name__}: {error}"[:_MESSAGE_CHARS]
        return failed("error", message, seconds=seconds)
    return _checked(task.result(), name, seconds)


async def grade_batch(
    grader: Grader,
    items: Iterable[GradeItem],
    *,
    deadline_s: float,
    concurrency: int,
    on_score: Callable[[int, Score], None] | None = None,
) -> list[Score]:
    """The scores of many responses, in the order of the items.

    Args:
        grader: Used for every item, by up to `concurrency` calls at a time.
        items: What to grade.
        deadline_s: Seconds for each item, counted from the moment its grading starts.
        concurrency: How many items are graded at the same time, at least 1.
        on_score: Called with an item's place and its score as soon as it is there, for progress.

    Raises:
        RewardError: `concurrency` is below 1.
    """
    if concurrency < 1:
        raise RewardError(f"grade_batch needs concurrency of at least 1, got {concurrency}")
    todo = list(items)
    scores: dict[int, Score] = {}

    async def work(queue: Iterator[tuple[int, GradeItem]]) -> None:
        for index, item in queue:
            scores[index] = await grade_with_deadline(
                grader, item.response, item.reference, deadline_s=deadline_s, **item.columns
            )
            if on_score is not None:
                on_score(index, scores[index])

    queue = iter(enumerate(todo))
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(todo))):
            workers.create_task(work(queue))
    return [scores[index] for index in range(len(todo))]


async def _grade(grader: Grader, response: str, reference: object, columns: Mapping[str, object]) -> object:
    """The call itself, made inside the task so that even a grader that raises at once is caught there."""
    try:
        return await grader.grade(response, reference, **columns)
    except SystemExit as error:
        # In a task it would end the event loop, and the run with the grader's exit code.
        raise RewardError(f"the grader raised SystemExit: {error}") from error


async def _abandon(task: "asyncio.Future[object]") -> None:
    """Cancel and wait a moment; a task that resists is left running, its late result ignored."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    await asyncio.wait({task}, timeout=_CLEANUP_S)


def _checked(answer: object, name: str, seconds: float) -> Score:
    if not isinstance(answer, Score):
        message = f"{name} returned {type(answer).__name__}, expected a Score"
        return failed("invalid", message, seconds=seconds)
    if answer.failure is None:
        if not math.isfinite(answer.value):
            return failed("invalid", f"{name} returned the value {answer.value}", seconds=seconds)
        for part, value in answer.parts.items():
            if not math.isfinite(value):
                return failed("invalid", f"{name} returned {value} for the part {part!r}", seconds=seconds)
    return replace(answer, seconds=seconds)
