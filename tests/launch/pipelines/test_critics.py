"""Stages with critics: what is refused, and that they run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from roll_launch.config import ConfigError, RlvrStage, RunConfig
from roll_launch.dry_run import dry_run
from roll_launch.pipelines import specs
from roll_launch.plan import StagePlan

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]


def _critics(task: Path, more: str = "") -> str:
    model = f"{{source: random, architecture: qwen3, tokenizer: {task}/tokenizer}}"
    return f"stages.rlvr.critics={{model: {model}, optimizer: {{learning_rate: 1.0e-3}}{more}}}"


def test_ppo_without_critics_is_refused(stage: Callable[..., RlvrStage]) -> None:
    with pytest.raises(ConfigError, match="critics: ppo needs them"):
        stage("stages.rlvr.algorithm.preset=ppo")


def test_critics_of_an_algorithm_without_values_are_refused(
    stage: Callable[..., RlvrStage], task: Path
) -> None:
    with pytest.raises(ConfigError, match="grpo estimates no values"):
        stage(_critics(task))


def test_an_algorithm_that_compares_critics_wants_two(stage: Callable[..., RlvrStage], task: Path) -> None:
    with pytest.raises(ConfigError, match="appo compares critics"):
        stage("stages.rlvr.algorithm.preset=appo", _critics(task))


def test_the_rule_of_critics_can_be_set(stage: Callable[..., RlvrStage], task: Path) -> None:
    made = stage(
        "stages.rlvr.algorithm={preset: appo, critic: {agreement: 0.3}}", _critics(task, ", count: 2")
    )
    assert made.algorithm.algorithm().critic.agreement == 0.3


async def test_stages_with_critics_are_planned_and_run_dry(planned: Planned, task: Path) -> None:
    config, plans = planned(
        "stages.rlvr.algorithm.preset=appo", _critics(task, ", count: 3, warmup_steps: 1")
    )
    spec = specs.policy_trainer(plans[0], processors=1, checkpoint=None)
    assert (spec.critics.count, spec.critics.warmup_steps) == (3, 1)
    assert spec.critics.model.seed != spec.model.seed
    assert (await dry_run(config, plans))["rlvr"].steps == 1
