import sys
import threading

import numpy as np
import pytest
from roll_rewards import Grader, RewardError, Score, grade_with_deadline, make_grader

A_NUMBER = 5


def length(response: str) -> int:
    return len(response)


def equal(response: str, reference: str) -> bool:
    return response == reference


async def near(response: str, reference: str, target: float, weight: float = 2.0) -> float:
    return weight * abs(float(response) - target)


def everything(**columns: object) -> dict:
    return {"score": len(columns), "names": 1.0, "parsed": " ".join(sorted(columns)), "note": "ignored"}


def whole_score(response: str) -> Score:
    return Score(value=0.25, parsed=response)


def promise(response: str) -> object:
    return near(response, "", target=1.0)


def thread_name(response: str) -> dict:
    return {"score": 1, "parsed": threading.current_thread().name}


def nothing(response: str) -> None:
    return None


def leaves(response: str) -> float:
    sys.exit("done")


def stops(response: str) -> float:
    return next(iter(()))


def stuck(response: str) -> float:
    threading.Event().wait()
    return 1.0


def positional(response: str, /) -> float:
    return 1.0


def other_names(text: str, gold: str) -> float:
    return 1.0


class Rules:
    @staticmethod
    def short(response: str) -> np.bool_:
        return np.bool_(len(response) < 3)


def grader_of(name: str) -> Grader:
    return make_grader("python", callable=f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("name", "value"),
    [("length", 3.0), ("equal", 1.0), ("whole_score", 0.25), ("Rules.short", 0.0), ("stops", None)],
)
async def test_numbers_bools_and_scores_become_scores(name: str, value: float | None) -> None:
    score = await grade_with_deadline(grader_of(name), "abc", "abc", deadline_s=5, unused="column")
    if value is None:
        assert score.failure is not None
        assert "StopIteration" in score.failure.message
    else:
        assert score.value == value
        assert score.failure is None


async def test_function_gets_only_the_columns_it_declares() -> None:
    score = await grader_of("near").grade("3", "ignored", target=1.0, other="not declared")
    assert score.value == 4.0


async def test_function_with_open_columns_gets_all_of_them() -> None:
    score = await grader_of("everything").grade("r", "g", domain="sums", target=1)
    assert score.value == 4.0
    assert score.parsed == "domain reference response target"
    assert score.parts == {"names": 1.0}


async def test_awaitable_that_a_sync_function_returns_is_awaited() -> None:
    assert (await grader_of("promise").grade("3", None)).value == 4.0


async def test_sync_function_runs_in_a_thread_of_its_own() -> None:
    score = await grader_of("thread_name").grade("r", None)
    assert score.parsed == f"grader {__name__}:thread_name"


async def test_stuck_function_misses_its_deadline_and_does_not_disturb_the_next() -> None:
    late = await grade_with_deadline(grader_of("stuck"), "r", None, deadline_s=0.05)
    assert late.failure is not None
    assert late.failure.kind == "deadline"
    assert (await grade_with_deadline(grader_of("length"), "abc", None, deadline_s=5)).value == 3.0


async def test_function_that_exits_is_a_failure_of_the_sample_alone() -> None:
    score = await grade_with_deadline(grader_of("leaves"), "r", None, deadline_s=5)
    assert score.failure is not None
    assert score.failure.kind == "error"
    assert "SystemExit: done" in score.failure.message


async def test_missing_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(
        RewardError, match="near requires target, but the row has only the columns goal besides"
    ):
        await grader_of("near").grade("3", None, goal=1.0)


async def test_answer_that_is_no_score_is_refused() -> None:
    with pytest.raises(
        RewardError, match=r"must return a number, a bool, a Score or a mapping.*got NoneType"
    ):
        await grader_of("nothing").grade("r", None)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_colon", "named as 'module:function', got 'no_colon'"),
        ("no_such_module:f", "cannot import 'no_such_module:f': ModuleNotFoundError"),
        (f"{__name__}:no_such", f"cannot import '{__name__}:no_such': AttributeError"),
        (f"{__name__}:A_NUMBER", "is a int, which cannot be called"),
        (f"{__name__}:positional", "its parameter 'response' is positional-only"),
        (f"{__name__}:other_names", "must take a parameter named 'response', it has text, gold"),
    ],
)
def test_callable_that_cannot_serve_is_refused_when_the_grader_is_made(path: str, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        make_grader("python", callable=path)
    assert message in str(caught.value)
