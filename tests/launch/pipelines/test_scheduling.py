"""A scheduler's deadlines allow for the queues in front of engines and graders."""

from collections.abc import Callable

import pytest
from roll_launch.config import ConfigError, RlvrStage
from roll_launch.pipelines.scheduling import evaluation_policy, training_policy
from roll_scheduler import OverProvision, Stragglers

FINDING_OUT = 10 + 60
"""Seconds until a process that hangs is found out, with the default configuration."""


def test_a_batch_that_fits_the_engines_gets_the_deadline_of_one_completion(
    stage: Callable[..., RlvrStage],
) -> None:
    policy = training_policy(stage("stages.rlvr.rollout.generate_deadline_s=100"))
    assert (policy.groups_per_batch, policy.group_size) == (2, 4)
    assert policy.generate_deadline_s == 100 + FINDING_OUT


def test_every_round_of_a_queue_adds_a_deadline(stage: Callable[..., RlvrStage]) -> None:
    few = stage(
        "stages.rlvr.rollout.engine.max_batch=10",
        "stages.rlvr.rollout.replicas=2",
        "stages.rlvr.rollout.generate_deadline_s=100",
        "stages.rlvr.rewards.deadline_s=5",
        "stages.rlvr.rewards.concurrency=8",
        "stages.rlvr.rewards.workers=2",
    )
    policy = evaluation_policy(few, 101)
    assert policy.generate_deadline_s == 6 * 100 + FINDING_OUT
    assert policy.grade_deadline_s == (7 + 1) * 5 + FINDING_OUT
    assert policy.max_failures == 50


def test_filters_are_those_of_the_configuration_and_evaluations_have_none(
    stage: Callable[..., RlvrStage],
) -> None:
    filtered = stage("stages.rlvr.rollout.filters={zero_spread: true, mean_outside: [0.1, 0.9]}")
    assert [each.name for each in training_policy(filtered).filters] == ["zero_spread", "mean_outside"]
    assert evaluation_policy(filtered, 8).filters == ()


def test_over_provisioning_is_that_of_the_configuration_and_evaluations_have_none(
    stage: Callable[..., RlvrStage],
) -> None:
    extra = stage("stages.rlvr.rollout.over_provision={prompts: 1, responses: 2, defer: true}")
    assert training_policy(extra).over_provision == OverProvision(groups=1, members=2, defer=True)
    assert evaluation_policy(extra, 8).over_provision is None
    assert training_policy(stage()).over_provision is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{}", "over-provisions nothing"),
        ("{prompts: 3}", r"more than twice what a step needs.*allowed: 0 to 2"),
        ("{responses: -1}", "responses"),
    ],
)
def test_over_provisioning_that_cannot_be_is_refused(
    stage: Callable[..., RlvrStage], value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        stage(f"stages.rlvr.rollout.over_provision={value}")


def test_stragglers_are_those_of_the_configuration_and_evaluations_have_none(
    stage: Callable[..., RlvrStage],
) -> None:
    late = stage("stages.rlvr.rollout.scheduling={stragglers: {gain: 0.5, most: 3}, wait_deadline_s: 60}")
    assert training_policy(late).stragglers == Stragglers(gain=0.5, most=3)
    assert training_policy(late).wait_deadline_s == evaluation_policy(late, 8).wait_deadline_s == 60
    assert evaluation_policy(late, 8).stragglers is None
    assert training_policy(stage()).stragglers is None
    moved = stage(
        "stages.rlvr.rollout.scheduling.stragglers={action: move}",
        "stages.rlvr.rollout.asynchrony={in_flight: stop}",
    )
    assert training_policy(moved).stragglers == Stragglers(action="move")


@pytest.mark.parametrize("value", ["{gain: 1}", "{gain: 0}", "{every_s: 0}", "{most: 0}", "{action: copy}"])
def test_a_rule_for_stragglers_that_cannot_be_is_refused(stage: Callable[..., RlvrStage], value: str) -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.stragglers"):
        stage(f"stages.rlvr.rollout.scheduling.stragglers={value}")
