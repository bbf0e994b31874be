"""Whole stages of preferences on tiny models: they learn, resume exactly, and sample what they learnt."""

from pathlib import Path

import pytest
from offline_runs import GENERATION, configured, logged, numbers, run_stages, write_task
from roll_launch.dry_run import dry_run
from roll_launch.interrupt import Interrupted
from roll_launch.plan import plan_stages
from roll_launch.run_directory import RunDirectory

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


@pytest.mark.parametrize(
    ("preset", "rows"), [("dpo", "pairs"), ("simpo", "pairs"), ("kto", "labelled"), ("reward_model", "pairs")]
)
async def test_a_stage_that_was_stopped_goes_on_to_the_same_numbers(
    task: Path, tmp_path: Path, preset: str, rows: str
) -> None:
    config = configured(task, "preference", rows, f"objective={{preset: {preset}}}")
    await run_stages(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        await run_stages(config, tmp_path / "stopped", stop_after=3)
    await run_stages(config, tmp_path / "stopped")
    whole, stopped = (numbers(logged(tmp_path / each, "preference")) for each in ("whole", "stopped"))
    assert stopped == whole
    assert {("eval/sequence_loss" in name) for _, name in whole} == {True, False}
    models = [tmp_path / each / "stages/preference/model/model.safetensors" for each in ("whole", "stopped")]
    assert models[0].read_bytes() == models[1].read_bytes()


async def test_computing_the_reference_once_changes_nothing(task: Path, tmp_path: Path) -> None:
    for when in ("once", "every_step"):
        config = configured(task, "preference", "pairs", "objective={preset: dpo}", f"reference={when}")
        await run_stages(config, tmp_path / when)
    once, every = (numbers(logged(tmp_path / when, "preference")) for when in ("once", "every_step"))
    # Rounding depends on what else is in a batch.
    assert once == pytest.approx(every, abs=1e-4)
    assert abs(once[1, "rewards/margins"]) < 1e-6 < abs(once[4, "rewards/margins"])


async def test_beta_is_that_of_the_configuration(task: Path, tmp_path: Path) -> None:
    for beta in ("0.1", "0.2"):
        objective = f"objective={{preset: ipo_sum, beta: {beta}}}"
        config = configured(
            task, "preference", "pairs", objective, "steps=2", "learner.optimizer.learning_rate=0"
        )
        await run_stages(config, tmp_path / beta)
    found = [numbers(logged(tmp_path / beta, "preference")) for beta in ("0.1", "0.2")]
    assert found[0][0, "eval/logps/chosen"] == found[1][0, "eval/logps/chosen"] < 0
    # (1 / (2 beta))^2, as long as the policy is the reference.
    assert [each[2, "actor/sequence_loss"] for each in found] == pytest.approx([25.0, 6.25], rel=1e-4)


async def test_a_stage_samples_and_grades_what_it_has_learnt(task: Path, tmp_path: Path) -> None:
    generation = f"evaluation.generation={GENERATION.format(task=task)}"
    config = configured(task, "preference", "pairs", "objective={preset: dpo}", generation)
    results = await run_stages(config, tmp_path / "run")
    assert {"eval/accuracy/before", "eval/accuracy/after"} <= results["preference"].metrics.keys()
    lines = [line for line in logged(tmp_path / "run", "preference") if "eval/accuracy" in line]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert all(line["eval/samples"] == 4 for line in lines)


async def test_a_dry_run_of_every_kind(task: Path, tmp_path: Path) -> None:
    generation = f"evaluation.generation={GENERATION.format(task=task)}"
    for preset, rows, more in (
        ("dpo", "pairs", [generation]),
        ("kto", "labelled", [generation]),
        ("reward_model", "pairs", []),
    ):
        config = configured(task, "preference", rows, f"objective={{preset: {preset}}}", *more)
        plans = plan_stages(config, RunDirectory(root=tmp_path / preset))
        assert (await dry_run(config, plans))["preference"].steps == 1
