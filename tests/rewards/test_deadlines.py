import asyncio
import math

import pytest
from roll_rewards import GradeItem, RewardError, Score, grade_batch, grade_with_deadline, make_grader


class Answering:
    """A grader that gives a fixed answer, right or not."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]


class Waiting:
    """A grader that never answers; counts what was cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Score(value=1.0)


class Stubborn:
    """A grader that does not let itself be cancelled until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("too late to matter")


async def test_verdict_passes_through_with_its_seconds() -> None:
    score = await grade_with_deadline(make_grader("exact"), "a", "a", deadline_s=5)
    assert score.value == 1.0
    assert score.failure is None
    assert 0 < score.seconds < 5


async def test_missed_deadline_is_a_failure_and_cancels_the_grader() -> None:
    grader = Waiting()
    score = await grade_with_deadline(grader, "a", "a", deadline_s=0.02)
    assert math.isnan(score.value)
    assert score.failure is not None
    assert score.failure.kind == "deadline"
    assert score.failure.message == "Waiting gave no score within 0.02 s"
    assert score.seconds >= 0.02
    assert grader.cancelled == 1


async def test_grader_that_resists_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll_rewards.deadlines._CLEANUP_S", 0.02)
    grader = Stubborn()
    score = await grade_with_deadline(grader, "a", "a", deadline_s=0.02)
    assert score.failure is not None
    assert score.failure.kind == "deadline"
    grader.release.set()
    await asyncio.sleep(0)


@pytest.mark.parametrize("deadline_s", [0, -1.0, math.nan])
async def test_no_time_at_all_is_a_missed_deadline(deadline_s: float) -> None:
    score = await grade_with_deadline(Answering(Score(value=1.0)), "a", "a", deadline_s=deadline_s)
    assert score.failure is not None
    assert score.failure.kind == "deadline"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (ValueError("no such file"), "error", "Answering raised ValueError: no such file"),
        (TimeoutError("upstream"), "error", "Answering raised TimeoutError: upstream"),
        (asyncio.CancelledError(), "error", "Answering cancelled itself"),
        (0.5, "invalid", "Answering returned float, expected a Score"),
        (None, "invalid", "Answering returned NoneType, expected a Score"),
        (Score(value=math.nan), "invalid", "Answering returned the value nan"),
        (Score(value=-math.inf), "invalid", "Answering returned the value -inf"),
        (Score(value=1.0, parts={"a": math.nan}), "invalid", "Answering returned nan for the part 'a'"),
    ],
)
async def test_whatever_is_not_a_finite_verdict_becomes_a_failure(
    answer: object, kind: str, message: str
) -> None:
    score = await grade_with_deadline(Answering(answer), "a", "a", deadline_s=5)
    assert math.isnan(score.value)
    assert score.failure is not None
    assert (score.failure.kind, score.failure.message) == (kind, message)


async def test_bad_reference_is_a_failure_not_a_zero() -> None:
    score = await grade_with_deadline(make_grader("exact"), "a", None, deadline_s=5)
    assert math.isnan(score.value)
    assert score.failure is not None
    assert "reference of grader 'exact'" in score.failure.message


async def test_cancelling_the_caller_cancels_the_grader() -> None:
    grader = Waiting()
    grading = asyncio.create_task(grade_with_deadline(grader, "a", "a", deadline_s=60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading
    assert grader.cancelled == 1


async def test_batch_keeps_the_order_of_its_items_and_isolates_failures() -> None:
    items = [GradeItem(response=text, reference="b") for text in "abcb"]
    items.insert(2, GradeItem(response="b", reference=None))
    scores = await grade_batch(make_grader("exact"), items, deadline_s=5, concurrency=3)
    assert [score.value for score in scores[:2] + scores[3:]] == [0.0, 1.0, 0.0, 1.0]
    assert scores[2].failure is not None


async def test_batch_never_grades_more_at_once_than_allowed() -> None:
    running = peak = 0

    class Counting:
        async def grade(self, response: str, reference: object, **columns: object) -> Score:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0)
            running -= 1
            return Score(value=float(str(columns["weight"])))

    items = [GradeItem(response="", reference=None, columns={"weight": i}) for i in range(20)]
    scores = await grade_batch(Counting(), items, deadline_s=5, concurrency=4)
    assert [score.value for score in scores] == list(range(20))
    assert peak == 4


async def test_empty_batch_has_no_scores() -> None:
    assert await grade_batch(make_grader("exact"), [], deadline_s=5, concurrency=4) == []


async def test_batch_needs_some_concurrency() -> None:
    with pytest.raises(RewardError, match="concurrency of at least 1, got 0"):
        await grade_batch(make_grader("exact"), [], deadline_s=5, concurrency=0)


def test_column_that_clashes_with_grading_is_refused() -> None:
    with pytest.raises(RewardError, match="columns named reference clash"):
        GradeItem(response="a", reference="a", columns={"reference": "b", "domain": "x"})


async def test_a_grader_that_exits_fails_and_does_not_end_the_event_loop() -> None:
    score = await grade_with_deadline(Answering(SystemExit(0)), "42", "42", deadline_s=1.0)
    assert score.failure is not None and score.failure.kind == "error"
    assert "SystemExit: 0" in score.failure.message
