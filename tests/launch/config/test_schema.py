"""What the run's schema refuses beyond types: unknown names, and keys that contradict each other."""

import dataclasses
import pickle
from pathlib import Path

import pytest
from roll_launch.config import (
    ConfigError,
    LocalRuntimeConfig,
    PolicyLearnerConfig,
    RayRuntimeConfig,
    RlvrStage,
    RunConfig,
    StageModel,
    SupervisedLearnerConfig,
    load_config,
    load_text,
)
from roll_launch.config.schema.algorithm import ALSO
from roll_learners.algorithm import PRESETS, Algorithm, KlPenalty, make_algorithm
from roll_learners.correction import Correction
from roll_learners.schedule import OptimizerSettings

PATH = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
RLVR, SFT = "stages.rlvr", "stages.sft"


def loaded(*overrides: str) -> RunConfig:
    return load_config(PATH, overrides).config


def rlvr(*overrides: str) -> RlvrStage:
    stage = loaded(*overrides).stages[1]
    assert isinstance(stage, RlvrStage)
    return stage


def refused(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(*overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (f"{RLVR}.rollout.sampling.top_p=0.9", "rollout.sampling.top_p: cuts off tokens"),
        (f"{RLVR}.rollout.sampling.top_k=50", "rollout.sampling.top_k: cuts off tokens"),
        (f"{RLVR}.rollout.sampling.min_p=0.1", "rollout.sampling.min_p: cuts off tokens"),
        (f"{RLVR}.rollout.sampling.temperature=0", "rollout.sampling.temperature: greedy responses"),
        (f"{RLVR}.rollout.sampling.top_p=1.5", "must be less than or equal to 1; got 1.5"),
        (f"{RLVR}.rollout.sampling.temperature=-1", "must be greater than or equal to 0"),
        (f"{RLVR}.rollout.sampling.stop=['']", "rollout.sampling.stop.0"),
        (f"{RLVR}.rollout.group_size=1", "rollout.group_size: dapo compares completions of one prompt"),
        (
            f"{RLVR}.rollout.filters={{mean_outside: [0.9, 0.1]}}",
            "rollout.filters.mean_outside: keeps no group",
        ),
        (f"{RLVR}.learner.mini_batches=129", "learner.mini_batches: more than a step has samples"),
        (f"{RLVR}.learner.optimizer.warmup_steps=161", "has 160 optimizer steps; got 161; allowed: 0 to 160"),
        (f"{SFT}.learner.optimizer.warmup_steps=300", "has 300 optimizer steps; got 300; allowed: 0 to 299"),
        (f"{RLVR}.learner.optimizer.min_lr_ratio=0.1", "min_lr_ratio: has no effect with schedule constant"),
        (f"{RLVR}.learner.micro_batch_tokens=110", "less than the longest sequence, 112 tokens"),
        (f"{SFT}.learner.micro_batch_tokens=110", "less than the longest sequence, 112 tokens"),
        (f"{RLVR}.rewards.overlong={{buffer_tokens: 81}}", "longer than the longest response"),
        (f"{SFT}.learner.mini_batches=2", "mini_batches belongs to pipeline rlvr; chosen is sft"),
        (
            f"{RLVR}.algorithm.preset=dpao",
            "algorithm.preset: unknown algorithm preset 'dpao': did you mean 'dapo'?",
        ),
        (
            f"{RLVR}.algorithm.advantage=grop",
            "algorithm.advantage: unknown advantage 'grop': did you mean 'grpo'?",
        ),
        (f"{RLVR}.algorithm.clip_low=-0.1", "algorithm.clip_low: algorithm.clip_low is -0.1"),
        (f"{RLVR}.algorithm.clip_low=null", "algorithm.clip_low: has no value"),
        (f"{RLVR}.algorithm.cliphigh=0.3", "algorithm.cliphigh: unknown key; did you mean clip_high?"),
        (f"{RLVR}.algorithm.kl={{placement: loss}}", "algorithm.kl: kl.placement is 'loss' but kl.coef is 0"),
        (f"{RLVR}.algorithm.kl={{placement: los, coef: 1}}", "algorithm.kl.placement: not an allowed name"),
        (
            f"{RLVR}.rewards.grader.name=exat",
            "rewards.grader.name: unknown grader; got exat; did you mean exact?",
        ),
        (
            f"{RLVR}.rewards.grader.options={{aftr: x}}",
            "options.aftr: unknown option of grader exact; did you mean after?",
        ),
        (
            f"{RLVR}.rewards.grader.options={{strip: 'no'}}",
            "rewards.grader.options.strip: option 'strip' of grader 'exact'",
        ),
        (f"{RLVR}.rewards.grader={{name: python}}", "required option of grader python is missing"),
        (f"{RLVR}.rewards.grader.options={{after: ''}}", "rewards.grader.options.after: option 'after'"),
        (f"{RLVR}.model.stage=rlvr", "model.stage: not earlier than this stage; got rlvr; allowed: sft"),
        (
            f"{RLVR}.model.stage=stf",
            "no stage of this name comes earlier; got stf; did you mean sft? allowed: sft",
        ),
        (
            f"{SFT}.model={{source: stage, stage: rlvr}}",
            "not earlier than this stage; got rlvr; allowed: none",
        ),
        (f"{SFT}.name=s.f.t", "should match pattern"),
        ("name=../x", "should match pattern"),
        ("seed=-1", "must be greater than or equal to 0"),
        ("stages=[]", "stages: has fewer than 1 items"),
        ("prepare.0.callable=no_function", "prepare.0.callable: string should match pattern"),
        (f"{RLVR}.learner.device=cuda", "learner.device: string should match pattern"),
        (f"{RLVR}.learner.device=cuda:0-3", "learner.device: string should match pattern"),
        ("runtime=rya", "runtime: not a value of an allowed type; got rya (str)"),
        ("runtime={kind: local, address: x}", "address belongs to kind ray; chosen is local"),
    ],
)
def test_a_contradiction_is_refused_with_its_key(override: str, problem: str) -> None:
    (got,) = refused(override)
    assert problem in got


def test_stage_names_are_unique_and_the_line_is_named() -> None:
    text = PATH.read_text().replace("- name: rlvr", "- name: sft").replace("stage: sft}", "stage: sft}")
    line = text.splitlines().index("  - name: sft", text.splitlines().index("  - name: sft") + 1) + 1
    with pytest.raises(ConfigError, match=f"x.yaml:{line}: stages.sft.name: stage 1 has this name already"):
        load_text(text, RunConfig, source="x.yaml")


def test_two_preparations_cannot_share_a_directory() -> None:
    one = "{callable: 'a:b', directory: x}"
    assert "prepare.1.directory: another preparation writes there" in refused(f"prepare=[{one}, {one}]")[0]


def test_a_group_of_one_is_for_algorithms_without_group_baseline() -> None:
    overrides = [f"{RLVR}.rollout.group_size=1", f"{RLVR}.algorithm={{preset: reinforce}}"]
    assert rlvr(*overrides).rollout.group_size == 1
    assert "leaves out every group of 1" in refused(*overrides, f"{RLVR}.rollout.filters.zero_spread=true")[0]


def test_a_learning_rate_of_zero_is_a_control_run() -> None:
    assert rlvr(f"{RLVR}.learner.optimizer.learning_rate=0").learner.optimizer.learning_rate == 0.0


@pytest.mark.parametrize("preset", sorted(name for name, made in PRESETS.items() if not made.needs))
def test_every_preset_that_needs_no_further_role_can_be_chosen(preset: str) -> None:
    assert rlvr(f"{RLVR}.algorithm={{preset: {preset}}}").algorithm.algorithm() == PRESETS[preset]


@pytest.mark.parametrize(("preset", "need"), [("gigpo", "turn_states"), ("remax", "greedy_baseline")])
def test_an_algorithm_whose_role_no_pipeline_places_is_refused(preset: str, need: str) -> None:
    assert (
        f"needs {need}, which this pipeline does not provide"
        in refused(f"{RLVR}.algorithm={{preset: {preset}}}")[0]
    )
    chosen = refused(f"{RLVR}.algorithm={{preset: grpo, advantage: {PRESETS[preset].advantage}}}")
    assert f"needs {need}" in chosen[0]


def test_a_correction_is_written_as_a_section() -> None:
    given = "{preset: grpo, correction: {weight: token, cap: 2.0}}"
    assert rlvr(f"{RLVR}.algorithm={given}").algorithm.algorithm().correction == Correction(
        weight="token", cap=2.0
    )
    wrong = refused(f"{RLVR}.algorithm={{preset: grpo, correction: {{weight: token, cap: 0}}}}")
    assert "correction.cap is 0" in wrong[0]


def test_written_fields_override_the_preset_and_others_do_not() -> None:
    given = "{preset: dapo, clip_high: 0.3, dual_clip: 3, kl: {placement: loss, coef: 1e-3}}"
    algorithm = rlvr(f"{RLVR}.algorithm={given}").algorithm
    assert algorithm.overrides() == {
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "kl": {"placement": "loss", "coef": 1e-3},
    }
    kl = KlPenalty(placement="loss", coef=1e-3)
    assert algorithm.algorithm() == make_algorithm("dapo", clip_high=0.3, dual_clip=3.0, kl=kl)


def test_every_field_of_an_algorithm_is_a_key() -> None:
    fields = {field.name for field in dataclasses.fields(Algorithm)} - {"name", "rhythm"}
    keys = set(type(rlvr().algorithm).model_fields)
    assert keys == fields | {"preset"}
    assert ALSO.keys() <= fields | {field.name for field in dataclasses.fields(KlPenalty)}


def test_the_optimizer_has_the_settings_of_the_learner() -> None:
    optimizer = rlvr().learner.optimizer
    settings = OptimizerSettings(**optimizer.model_dump(), total_steps=160)
    assert settings.betas == (0.9, 0.99)
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(OptimizerSettings)
        if field.name != "learning_rate"
    }
    assert {**type(optimizer)(learning_rate=1.0).model_dump(), "total_steps": None} == {
        "learning_rate": 1.0,
        **defaults,
    }


def test_a_runtime_may_be_written_as_one_word() -> None:
    assert loaded("runtime=local").runtime == LocalRuntimeConfig(kind="local")
    long = "runtime={kind: ray, address: auto, start_deadline_s: 5}"
    assert loaded(long).runtime == RayRuntimeConfig(kind="ray", address="auto", start_deadline_s=5.0)


def test_the_learner_of_a_supervised_stage_makes_one_pass_of_one_mini_batch() -> None:
    supervised, policy = (stage.learner for stage in loaded().stages)
    assert isinstance(supervised, SupervisedLearnerConfig) and isinstance(policy, PolicyLearnerConfig)
    assert (supervised.mini_batches, supervised.epochs) == (1, 1)
    assert "mini_batches" not in supervised.model_dump()


def test_a_configuration_cannot_be_changed_and_can_be_pickled() -> None:
    config = loaded()
    with pytest.raises(ValueError, match="frozen"):
        config.stages[1].model = StageModel(source="stage", stage="x")  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


def test_python_callers_are_checked_as_strictly() -> None:
    with pytest.raises(ValueError, match="valid integer"):
        PolicyLearnerConfig.model_validate({"optimizer": {"learning_rate": 1.0}, "epochs": "2"})
