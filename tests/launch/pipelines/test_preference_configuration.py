"""Stages of preferences: what is refused, and what presets come to."""

import dataclasses
from pathlib import Path

import pytest
from offline_runs import GENERATION, configured, write_task
from roll_launch.config import ConfigError, PreferenceStage, RewardModelRule, load_text
from roll_launch.config.schema.distillation import DistillationConfig
from roll_launch.config.schema.preference import PreferenceConfig
from roll_launch.config.schema.run import RunConfig
from roll_learners import PREFERENCE_LOSSES, PREFERENCES, Distillation, Kto, Preference


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


def _stage(task: Path, objective: str, *overrides: str) -> PreferenceStage:
    (stage,) = configured(task, "preference", "pairs", f"objective={objective}", *overrides).stages
    assert isinstance(stage, PreferenceStage)
    return stage


@pytest.mark.parametrize("preset", PREFERENCES)
def test_a_preset_alone_is_that_of_the_learners(task: Path, preset: str) -> None:
    assert _stage(task, f"{{preset: {preset}}}").objective.rule() == PREFERENCES[preset]


def test_values_that_are_given_replace_those_of_the_preset(task: Path) -> None:
    rule = _stage(task, "{preset: dpo, beta: 0.5, label_smoothing: 0.2, nll_coef: 1.0}").objective.rule()
    assert (rule.options, rule.nll_coef) == ({"beta": 0.5, "label_smoothing": 0.2}, 1.0)
    assert _stage(task, "{preset: kto, beta: 0.3}").objective.rule() == Kto(beta=0.3)
    assert _stage(task, "{preset: reward_model, margin: 1}").objective.rule() == RewardModelRule(margin=1)


@pytest.mark.parametrize(
    ("objective", "overrides", "problem"),
    [
        ("{preset: dop}", (), "objective.preset: unknown preset; got dop;.*did you mean dpo"),
        ("{preset: dpo, gamma: 1.0}", (), "objective.gamma: preset dpo has no such value"),
        ("{preset: kto, label_smoothing: 0.1}", (), "preset kto has no such value"),
        ("{preset: dpo, beta: 0}", (), "beta"),
        ("{preset: robust_dpo, label_smoothing: 0.5}", (), "below 0.5 for 'robust_dpo'"),
        ("{preset: kto}", ("batch_size=1",), "batch_size: kto estimates its baseline"),
        ("{preset: kto}", ("reference=once",), "reference: the baseline of kto"),
        ("{preset: dpo}", ("steps=2", "learner.optimizer.warmup_steps=5"), "the stage has 2 optimizer steps"),
        ("{preset: dpo}", ("max_tokens=50000",), "less than the longest sequence"),
    ],
)
def test_a_wrong_value_is_named(task: Path, objective: str, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _stage(task, objective, *overrides)


def test_a_reward_model_samples_nothing(task: Path) -> None:
    generation = GENERATION.format(task=task)
    with pytest.raises(ConfigError, match="generation: a reward model samples nothing"):
        _stage(task, "{preset: reward_model}", f"evaluation.generation={generation}")


TWO = """
name: test
stages:
  - name: rm
    pipeline: preference
    model: {{source: pretrained, path: here}}
    data: {{source: jsonl, path: pairs.jsonl}}
    objective: {{preset: {preset}}}
    learner: {{optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 1
    batch_size: 2
    max_tokens: 64
  - name: rlvr
    pipeline: rlvr
    model: {{source: {policy}}}
    data: {{source: jsonl, path: train.jsonl}}
    algorithm: {{preset: grpo}}
    rollout: {{group_size: 2, prompts_per_step: 1, max_prompt_tokens: 8, sampling: {{max_tokens: 8}}}}
    rewards:
      grader: {grader}
      models: [{{name: judge, model: {{source: stage, stage: rm}}}}]
    learner: {{optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 1
"""
ASKING = "{name: weighted, options: {parts: {a: {name: reward_model, options: {model: judge}}}}}"


def _two(
    preset: str = "reward_model", policy: str = "pretrained, path: here", grader: str = ASKING
) -> RunConfig:
    return load_text(TWO.format(preset=preset, policy=policy, grader=grader), RunConfig).config


def test_a_stage_names_the_reward_model_of_an_earlier_one() -> None:
    assert _two().stages[1].rewards.models[0].model.stage == "rm"


def test_models_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.models\.judge\.model\.stage: trains no reward model"):
        _two(preset="dpo")
    with pytest.raises(ConfigError, match=r"model\.stage: trains a reward model"):
        _two(policy="stage, stage: rm")


def test_a_reward_model_that_nobody_asks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"models\.judge\.name: no grader `reward_model` has it"):
        _two(grader="{name: exact}")


def test_every_key_of_an_objective_is_one_of_the_learners() -> None:
    """So that none is without effect: both sections are passed on whole."""
    of_pairs = {key for name in PREFERENCE_LOSSES.names() for key in PREFERENCE_LOSSES.part(name).parameters}
    fields = {field.name for rule in (Preference, Kto, RewardModelRule) for field in dataclasses.fields(rule)}
    assert set(PreferenceConfig.model_fields) - {"preset"} == (of_pairs | fields) - {"loss", "options"}
    assert set(DistillationConfig.model_fields) == {field.name for field in dataclasses.fields(Distillation)}
