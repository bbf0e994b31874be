"""What the driver can tell of a batch from scores and lengths."""

from collections.abc import Mapping

import numpy as np
import pytest
from roll_launch.pipelines.collection import RolloutBatch
from roll_launch.pipelines.rollout_metrics import rollout_metrics
from roll_launch.pipelines.sample_names import shortened
from roll_rewards import Score
from roll_scheduler import Batch, Generated, Graded, Group, Member, Ticket

Members = list[tuple[int, float]]


def batch(*groups: Members, failures: Mapping[str, int] | None = None) -> RolloutBatch:
    """Groups of (tokens, score)."""
    made = []
    for number, members in enumerate(groups):
        made.append(
            Group(
                id=number,
                prompt=None,
                members=tuple(
                    Member(
                        ticket=Ticket(id=index, group=number, member=index, attempt=0, seed=0),
                        generated=Generated(
                            completion=None, tokens=tokens, oldest_version=0, truncated=False
                        ),
                        graded=Graded(score=Score(value=score), value=score),
                    )
                    for index, (tokens, score) in enumerate(members)
                ),
            )
        )
    return Batch(groups=tuple(made), version=0, failures=failures or {}, dropped={})


def metrics_of(*groups: Members, failures: Mapping[str, int] | None = None) -> dict[str, float]:
    made = batch(*groups, failures=failures)
    return rollout_metrics(made, [score for members in groups for _, score in members])


def test_the_correlation_is_that_of_deviations_from_the_groups_means() -> None:
    easy, hard = [(10, 1.0), (12, 0.0), (11, 1.0)], [(100, 0.0), (104, 1.0), (90, 0.0), (96, 0.0)]
    metrics = metrics_of(easy, hard)
    deviations = np.concatenate([np.array(group) - np.mean(group, axis=0) for group in (easy, hard)])
    lengths, rewards = deviations.T
    assert metrics["critic/reward_length_correlation"] == pytest.approx(
        (lengths @ rewards) / np.sqrt((lengths @ lengths) * (rewards @ rewards))
    )
    assert metrics["critic/reward_length_slope"] == pytest.approx((lengths @ rewards) / (lengths @ lengths))


def test_hard_prompts_with_long_wrong_responses_are_no_correlation() -> None:
    metrics = metrics_of([(10, 1.0), (12, 1.0)], [(100, 0.0), (120, 0.0)])
    assert "critic/reward_length_correlation" not in metrics
    assert metrics["critic/reward_length_slope"] == 0


def test_a_reward_that_is_the_length_has_correlation_one_and_its_own_slope() -> None:
    metrics = metrics_of([(tokens, 0.01 * tokens) for tokens in (10, 30, 35)], [(70, 0.7), (90, 0.9)])
    assert metrics["critic/reward_length_correlation"] == pytest.approx(1)
    assert metrics["critic/reward_length_slope"] == pytest.approx(0.01)


def test_groups_that_train_nothing_lower_the_slope_and_not_the_correlation() -> None:
    trained, solved = [(10, 0.1), (30, 0.3)], [(10, 1.0), (30, 1.0)]
    metrics = metrics_of(trained, solved)
    assert metrics["critic/reward_length_correlation"] == pytest.approx(1)
    assert metrics["critic/reward_length_slope"] == pytest.approx(0.005)


def test_groups_of_one_and_groups_without_a_spread_say_nothing() -> None:
    metrics = metrics_of([(10, 1.0)], [(20, 0.0), (20, 1.0)])
    assert not any("reward_length" in name for name in metrics)


def test_the_failure_rate_is_of_all_attempts() -> None:
    assert metrics_of([(3, 1.0)] * 6)["rollout/failure_rate"] == 0
    failed = metrics_of([(3, 1.0)] * 6, failures={"engine": 1, "reward_error": 1})
    assert failed["rollout/failure_rate"] == pytest.approx(2 / 8)


def test_a_long_prompt_is_shown_with_its_beginning_and_its_end() -> None:
    assert shortened("hcfa=") == "hcfa="
    text = "You are a helpful assistant. " * 5 + "What is 7 - 12?"
    assert shortened(text) == f"{text[:40]} ... {text[-20:]}"
