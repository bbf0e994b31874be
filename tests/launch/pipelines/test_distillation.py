"""Distillation on given responses, and by the policy's own: where teachers are changes nothing but speed."""

from pathlib import Path

import pytest
from offline_runs import TINY, configured, configured_rlvr, logged, numbers, run_stages, write_task
from roll_launch.config import ConfigError, DistillationStage
from roll_launch.dry_run import dry_run
from roll_launch.interrupt import Interrupted
from roll_launch.plan import PlanError, plan_stages
from roll_launch.run_directory import RunDirectory
from roll_learners import LearnerError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


DEEPER = TINY.replace("num_hidden_layers: 1", "num_hidden_layers: 2")


def _teacher(task: Path, more: str = "", config: str = DEEPER) -> str:
    model = f"{{source: random, architecture: qwen3, config: {config}, tokenizer: {task}/tokenizer}}"
    return f"{{model: {model}{more}}}"


def _distillation(task: Path, *overrides: str, teacher: str | None = None):
    teachers = f"teachers=[{_teacher(task) if teacher is None else teacher}]"
    return configured(task, "distillation", "demonstrations", teachers, *overrides)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("objective={divergence: forward}",), "objective.divergence"),
        (("objective={divergence: forward_kl, options: {beta: 0.5}}",), "option of divergence 'forward_kl'"),
        (
            ("objective={divergence: generalised_js, options: {beta: x}}",),
            "options.beta: not a number; got 'x'",
        ),
        (("objective={top_mass: student_full}",), "top_mass: has no effect without top_k"),
        (("teacher_logits=once",), "teacher_logits: whole distributions are too many to keep"),
        (("objective.weight=1.5",), "weight"),
        (("teachers=[]",), "teachers"),
    ],
)
def test_a_wrong_value_is_named(task: Path, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _distillation(task, *overrides)


def test_a_teacher_of_its_own_sends_top_logits_only(task: Path) -> None:
    with pytest.raises(ConfigError, match=r"placement: a teacher in a process of its own sends its top_k"):
        _distillation(task, teacher=_teacher(task, ", placement: own"))


def test_a_domain_that_the_data_do_not_have_is_refused(task: Path) -> None:
    with pytest.raises(ConfigError, match="domains: no such domain in the data; got maths"):
        _distillation(task, teacher=_teacher(task, ", domains: [maths]"))


def test_the_objective_is_that_of_the_configuration(task: Path) -> None:
    (stage,) = _distillation(
        task, "objective={divergence: generalised_js, options: {beta: 0.9}, top_k: 5}"
    ).stages
    assert isinstance(stage, DistillationStage)
    rule = stage.objective.distillation()
    assert (rule.divergence, rule.options, rule.top_k, rule.weight) == (
        "generalised_js",
        {"beta": 0.9},
        5,
        0.5,
    )


def test_a_teacher_that_reads_other_tokens_is_refused(task: Path, tmp_path: Path) -> None:
    from roll_launch.tasks.sort_letters import write_tokenizer

    write_tokenizer(tmp_path / "other")
    text = (tmp_path / "other" / "tokenizer.json").read_text()
    (tmp_path / "other" / "tokenizer.json").write_text(
        text.replace('"a": 3', '"a": 4').replace('"b": 4', '"b": 3')
    )
    config = _distillation(task, teacher=_teacher(tmp_path / "other").replace("other/tokenizer", "other"))
    with pytest.raises(PlanError, match=r"the tokenizer of teacher 0, .*, gives other ids than the student"):
        plan_stages(config, RunDirectory(root=tmp_path / "run"))


async def test_placement_and_cache_change_no_number(task: Path, tmp_path: Path) -> None:
    found = []
    for placement, when in (("trainer", "every_step"), ("own", "every_step"), ("own", "once")):
        teacher = _teacher(task, f", placement: {placement}")
        config = _distillation(
            task, "objective={top_k: 5, weight: 1.0}", f"teacher_logits={when}", "steps=8", teacher=teacher
        )
        root = tmp_path / f"{placement}-{when}"
        await run_stages(config, root)
        found.append(numbers(logged(root, "distillation")))
    assert found[0] == found[1] and found[0][1, "actor/kd_loss"] > 0
    # Other rows in a batch round otherwise.
    assert found[2] == pytest.approx(found[0], abs=1e-4)


async def test_a_stage_that_was_stopped_goes_on_to_the_same_numbers(task: Path, tmp_path: Path) -> None:
    config = _distillation(task, "objective={top_k: 5}", teacher=_teacher(task, ", placement: own"))
    await run_stages(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        await run_stages(config, tmp_path / "stopped", stop_after=3)
    await run_stages(config, tmp_path / "stopped")
    whole, stopped = (numbers(logged(tmp_path / each, "distillation")) for each in ("whole", "stopped"))
    assert whole == stopped and {(0, "eval/nll"), (4, "eval/nll")} <= whole.keys()


async def test_several_teachers_teach_their_own_domains(task: Path, tmp_path: Path) -> None:
    """Both domains have the same rows: what a teacher of one of them says counts for about half."""
    rows = f"{{source: jsonl, path: {task}/demonstrations.jsonl}}"
    domains = ", ".join(f"{{name: {name}, data: {rows}}}" for name in ("one", "two"))
    data = f"data={{source: mixture, domains: [{domains}]}}"
    found = {}
    for name, domain in (("both", "[one, two]"), ("all", "null"), ("first", "[one]")):
        teachers = f"teachers=[{_teacher(task, f', domains: {domain}')}]"
        config = _distillation(task, data, teachers, "objective={weight: 1.0}", "batch_size=16", "steps=1")
        await run_stages(config, tmp_path / name)
        found[name] = numbers(logged(tmp_path / name, "distillation"))[1, "actor/kd_loss"]
    assert found["both"] == found["all"] > found["first"] > 0
    weighed = data.replace("name: two,", "name: two, weight: 2.0,")
    with pytest.raises(ConfigError, match=r"domains\.two: every row of every domain is used once an epoch"):
        _distillation(task, weighed)


async def test_vocabularies_that_differ_are_told_with_their_sizes(task: Path, tmp_path: Path) -> None:
    padded = TINY[:-1] + ", vocab_size: 64}"
    config = _distillation(task, teacher=_teacher(task, config=padded))
    with pytest.raises(LearnerError, match="25 logits and a teacher 64"):
        await run_stages(config, tmp_path / "run")
    config = _distillation(
        task, "objective={vocabulary: 25}", "steps=1", teacher=_teacher(task, config=padded)
    )
    assert (await run_stages(config, tmp_path / "shared"))["distillation"].steps == 1


async def test_on_policy_distillation_needs_no_grader_and_no_place(task: Path, tmp_path: Path) -> None:
    found = []
    for placement in ("trainer", "own"):
        config = configured_rlvr(
            task,
            "on_policy_distillation",
            f"teachers=[{_teacher(task, f', placement: {placement}')}]",
            "rewards.grader=null",
            "steps=2",
        )
        await run_stages(config, tmp_path / placement)
        found.append(numbers(logged(tmp_path / placement, "rlvr")))
    assert found[0] == found[1] and found[0][1, "actor/grad_norm"] > 0


def test_a_grader_may_be_missing_only_where_teachers_take_its_place(task: Path) -> None:
    with pytest.raises(ConfigError, match=r"rewards.grader: grpo learns from rewards"):
        configured_rlvr(task, "grpo", "rewards.grader=null")
    with pytest.raises(ConfigError, match="teachers: on_policy_distillation learns from teachers alone"):
        configured_rlvr(task, "on_policy_distillation")


async def test_dry_runs_with_teachers(task: Path, tmp_path: Path) -> None:
    own = _teacher(task, ", placement: own")
    for config, name in (
        (_distillation(task, "objective={top_k: 5}", teacher=own), "distillation"),
        (configured_rlvr(task, "grpo", f"teachers=[{own}]"), "rlvr"),
    ):
        plans = plan_stages(config, RunDirectory(root=tmp_path / name))
        assert (await dry_run(config, plans))[name].steps == 1
