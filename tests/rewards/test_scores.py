import math
import pickle

import numpy as np
import pytest
from roll_rewards import Failure, RewardError, Score, summarise_scores


def test_score_with_a_failure_cannot_carry_a_reward() -> None:
    with pytest.raises(RewardError, match="a failure is not a reward"):
        Score(value=0.0, failure=Failure(kind="error", message="broke"))


def test_score_refuses_a_value_that_is_not_a_number() -> None:
    with pytest.raises(RewardError, match="must be a number, got str '1'"):
        Score(value="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1), np.int64(1), np.bool_(True)])
def test_score_value_is_a_plain_float_whatever_number_came(value: float) -> None:
    assert type(Score(value=value).value) is float
    assert Score(value=value).value == 1.0


def test_scores_and_errors_survive_pickling() -> None:
    score = Score(value=0.5, parts={"format": 1.0}, parsed="x", seconds=0.1)
    assert pickle.loads(pickle.dumps(score)) == score
    error = pickle.loads(pickle.dumps(RewardError("no grader 'x'")))
    assert isinstance(error, RewardError)
    assert str(error) == "no grader 'x'"


def test_summary_counts_failures_apart_and_keeps_them_out_of_the_mean() -> None:
    scores = [
        Score(value=1.0, parsed="4", seconds=1.0, parts={"format": 1.0}),
        Score(value=0.0, timed_out=True, seconds=3.0, parts={"format": 0.0}),
        Score(value=0.5, parsed="5"),
        Score(value=math.nan, failure=Failure(kind="deadline", message="late"), seconds=8.0),
        Score(value=math.nan, failure=Failure(kind="error", message="broke")),
        Score(value=math.nan, failure=Failure(kind="error", message="broke")),
    ]
    metrics = summarise_scores(scores)
    assert metrics["rewards/mean"] == 0.5
    assert metrics["rewards/min"] == 0.0
    assert metrics["rewards/max"] == 1.0
    assert metrics["rewards/std"] == pytest.approx(math.sqrt(1 / 6))
    assert metrics["rewards/parsed_rate"] == pytest.approx(2 / 3)
    assert metrics["rewards/graded"] == 3
    assert metrics["rewards/timed_out"] == 1
    assert metrics["rewards/failed"] == 3
    assert metrics["rewards/failed/deadline"] == 1
    assert metrics["rewards/failed/error"] == 2
    assert metrics["rewards/seconds/mean"] == 2.0
    assert metrics["rewards/seconds/max"] == 8.0
    assert metrics["rewards/parts/format/mean"] == 0.5


def test_summary_of_nothing_but_failures_has_no_mean_instead_of_zero() -> None:
    metrics = summarise_scores([Score(value=math.nan, failure=Failure(kind="error", message="broke"))])
    assert math.isnan(metrics["rewards/mean"])
    assert math.isnan(metrics["rewards/parsed_rate"])
    assert metrics["rewards/failed"] == 1


def test_summary_of_no_scores_is_empty_counts() -> None:
    metrics = summarise_scores([])
    assert metrics["rewards/graded"] == metrics["rewards/failed"] == 0
    assert math.isnan(metrics["rewards/mean"])
