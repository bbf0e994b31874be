"""What a resume finds in a run directory, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest
from faulty_roles import FaultyRuntime, run_stage
from roll_launch.alarms import AlarmRecord
from roll_launch.checkpoint_manifest import MANIFEST, write_manifest
from roll_launch.checkpoint_store import CheckpointError, commit
from roll_launch.config import RunConfig, dump_config, masked_keys
from roll_launch.dry_run import DryTrainer
from roll_launch.failures import RoleDied
from roll_launch.history import History, ResumeError, read_history
from roll_launch.pipelines.stage import StageResult
from roll_launch.plan import StagePlan
from roll_launch.progress import ProgressError, StageProgress
from roll_launch.resume import clear_the_way
from roll_launch.run_directory import RunDirectory
from roll_scheduler import SchedulerSnapshot

Planned = Callable[..., tuple[RunConfig, list[StagePlan]]]
EVERY = ("stages.rlvr.steps=4", "stages.rlvr.checkpoint.every=1", "stages.rlvr.checkpoint.keep=3")


def _read(directory: RunDirectory, config: RunConfig, plans: list[StagePlan]) -> History:
    return read_history(directory, dump_config(config), plans)


@pytest.fixture
async def stopped(planned: Planned, tmp_path: Path) -> RunDirectory:
    """A run that died in its fourth step."""
    count = 0

    def fault(who: str, what: str, number: int) -> None:
        nonlocal count
        if (who, what) == ("trainer", "policy_step"):
            count += 1
            if count == 4:
                raise RoleDied(who, what, "killed")

    config, (plan,) = planned(*EVERY)
    directory = RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / "run")
    with pytest.raises(RoleDied):
        await run_stage(config, plan, directory, FaultyRuntime(fault))
    return directory


def test_a_stopped_stage_goes_on_from_its_newest_checkpoint(planned: Planned, stopped: RunDirectory) -> None:
    history = _read(stopped, *planned(*EVERY))["rlvr"]
    assert history.checkpoint == stopped.checkpoints("rlvr") / "step_3"
    progress = history.progress
    assert (progress.step, progress.version, progress.samples) == (3, 3, 24)
    assert progress.scheduler is not None and progress.scheduler.first_group == 6
    assert progress.scheduler.ends == {"delivered": 24}


async def test_a_finished_stage_is_known_as_such(planned: Planned, stopped: RunDirectory) -> None:
    config, (plan,) = planned(*EVERY)
    await run_stage(config, plan, stopped, FaultyRuntime(), resume=True)
    history = _read(stopped, config, [plan])["rlvr"]
    assert history.finished and history.progress.step == 4
    # A kill between the model and what the stage came to leaves it unfinished.
    shutil.rmtree(stopped.finished("rlvr"))
    assert not _read(stopped, config, [plan])["rlvr"].finished


@pytest.mark.parametrize("file", ["trainer-state", "progress.json", "config.yaml", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "gone", "flipped"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    planned: Planned,
    stopped: RunDirectory,
    file: str,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = stopped.checkpoints("rlvr") / "step_3" / ("dry" if file == "trainer-state" else file)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-1])
    else:
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    history = _read(stopped, *planned(*EVERY))["rlvr"]
    assert history.checkpoint == stopped.checkpoints("rlvr") / "step_2"
    assert "step_3 is passed over" in caplog.text


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("seed=1", r"seed: 0 in the checkpoint, 1 now"),
        (
            "stages.rlvr.learner.optimizer.learning_rate=0.5",
            r"learning_rate: 0\.001 in the checkpoint, 0\.5 now",
        ),
        ("stages.rlvr.algorithm={preset: dapo}", r"preset: grpo in the checkpoint, dapo now"),
        ("stages.rlvr.rollout.group_size=2", r"group_size: 4 in the checkpoint, 2 now"),
        ("stages.rlvr.steps=9", r"steps: 4 in the checkpoint, 9 now"),
        (
            "stages.rlvr.rollout.sampling.stop=[';']",
            r"stop: \[\] in the checkpoint, \[';'\] now",
        ),
        ("stages.rlvr.evaluation=null", r"evaluation\.every: 1 in the checkpoint, not there now"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_and_the_difference_named(
    planned: Planned, stopped: RunDirectory, override: str, difference: str
) -> None:
    with pytest.raises(ResumeError, match=difference):
        _read(stopped, *planned(*EVERY, override))


@pytest.mark.parametrize(
    "override",
    [
        "runtime=ray",
        "tracking.tensorboard=false",
        "stages.rlvr.checkpoint={every: 7, keep: 1}",
        "stages.rlvr.deadlines.step_s=9",
        "stages.rlvr.rollout.replicas=3",
        "stages.rlvr.rewards.workers=2",
        "stages.rlvr.learner.threads=2",
        "stages.rlvr.alarms=null",
    ],
)
def test_where_and_how_fast_a_run_computes_may_change(
    planned: Planned, stopped: RunDirectory, override: str
) -> None:
    assert _read(stopped, *planned(*EVERY, override))["rlvr"].progress.step == 3


def test_a_checkpoint_with_other_data_is_refused(planned: Planned, stopped: RunDirectory, task: Path) -> None:
    config, (plan,) = planned(*EVERY)
    plan = _with_one_prompt_less(plan)
    with pytest.raises(ResumeError, match="written with other data: stage rlvr"):
        _read(stopped, config, [plan])


def _with_one_prompt_less(plan: StagePlan) -> StagePlan:
    return replace(plan, prompts=replace(plan.prompts, prompts=plan.prompts.prompts[1:]))


def test_nothing_to_resume_begins_anew(planned: Planned, tmp_path: Path) -> None:
    directory = RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / "run")
    assert _read(directory, *planned(*EVERY)) == {}


def test_progress_survives_its_file(tmp_path: Path) -> None:
    progress = StageProgress(
        stage="rlvr",
        step=3,
        version=2,
        scheduler=SchedulerSnapshot(first_group=4, resolved=(6, 9), version=2, ends={"delivered": 7}),
        samples=7,
        metrics={"eval/accuracy/before": 0.5},
        files={"metrics.jsonl": 12},
    )
    progress.save(tmp_path / "progress.json")
    assert StageProgress.load(tmp_path / "progress.json") == progress


def test_progress_from_before_groups_were_deferred_is_read(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    StageProgress(stage="rlvr", step=3, scheduler=SchedulerSnapshot(first_group=4, resolved=(6,))).save(path)
    values = json.loads(path.read_text())
    del values["scheduler"]["deferred"]
    path.write_text(json.dumps(values))
    assert StageProgress.load(path).scheduler == SchedulerSnapshot(first_group=4, resolved=(6,))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"stage": "a"}', '{"scheduler": null, "colour": 1}']
)
def test_a_broken_progress_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(ProgressError, match=r"progress\.json cannot be read"):
        StageProgress.load(path)


def test_held_out_prompts_that_changed_are_refused_too(planned: Planned, stopped: RunDirectory) -> None:
    config, (plan,) = planned(*EVERY, "stages.rlvr.evaluation.prompts=8")
    plan = replace(plan, heldout=replace(plan.heldout, prompts=plan.heldout.prompts[1:]))
    with pytest.raises(ResumeError, match="written with other data"):
        _read(stopped, config, [plan])


def test_rollouts_that_were_lost_are_told_and_not_made_up(planned: Planned, stopped: RunDirectory) -> None:
    config, plans = planned(*EVERY)
    history = _read(stopped, config, plans)
    path = stopped.rollouts("rlvr")
    length = path.stat().st_size
    path.write_bytes(path.read_bytes()[: length // 3])
    with pytest.raises(ResumeError, match=r"rlvr\.jsonl has \d+ bytes, but \d+ had been written"):
        clear_the_way(stopped, plans, history)


async def test_what_a_stage_came_to_on_other_weights_is_not_taken_for_its_end(
    planned: Planned, stopped: RunDirectory
) -> None:
    config, (plan,) = planned(*EVERY)
    await run_stage(config, plan, stopped, FaultyRuntime(), resume=True)
    (stopped.model("rlvr") / "manifest.json").unlink()
    clear_the_way(stopped, [plan], _read(stopped, config, [plan]))
    assert not stopped.model("rlvr").exists() and not stopped.finished("rlvr").exists()
    assert stopped.model("rlvr").with_name("model.broken").exists()


async def test_a_trainer_that_writes_where_the_driver_cannot_see_makes_no_checkpoint(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(trainer: DryTrainer, directory: Path, *, state: bool) -> None:
        return None

    monkeypatch.setattr(DryTrainer, "save", elsewhere)
    config, (plan,) = planned(*EVERY)
    directory = RunDirectory.claim(tmp_path, now=datetime.now(), exact=tmp_path / "other")
    with pytest.raises(CheckpointError, match="does not share this path"):
        await run_stage(config, plan, directory, FaultyRuntime())
    assert list(directory.checkpoints("rlvr").iterdir()) == []


def test_masked_keys_are_told_by_name(planned: Planned) -> None:
    config, _ = planned(
        "prepare=[{callable: 'json:loads', directory: d, arguments: {api_key: 'abcdefgh', size: 3}}]"
    )
    assert masked_keys(config) == ["prepare.0.arguments.api_key"]


def test_a_stage_under_another_name_does_not_begin_anew_beside_what_it_had_come_to(
    planned: Planned, stopped: RunDirectory
) -> None:
    with pytest.raises(ResumeError, match="rlvr is of a stage that the configuration does not have"):
        _read(stopped, *planned("stages.rlvr.name=other"))


def test_a_checkpoint_under_the_name_of_another_step_is_refused(
    planned: Planned, stopped: RunDirectory
) -> None:
    root = stopped.checkpoints("rlvr")
    (root / "step_3").rename(root / "step_30")
    with pytest.raises(ResumeError, match="step_30 was written after step 3"):
        _read(stopped, *planned(*EVERY))


def test_a_checkpoint_whose_configuration_cannot_be_read_is_named(
    planned: Planned, stopped: RunDirectory
) -> None:
    checkpoint = stopped.checkpoints("rlvr") / "step_3"
    for content in (b"a: [1", b"\xff", b"stages: 3"):
        (checkpoint / "config.yaml").write_bytes(content)
        write_manifest(checkpoint, [path.name for path in checkpoint.iterdir() if path.name != MANIFEST])
        with pytest.raises(ResumeError, match=r"config\.yaml cannot be read"):
            _read(stopped, *planned(*EVERY))


def test_a_file_that_was_edited_is_not_cut_within_a_line(planned: Planned, stopped: RunDirectory) -> None:
    config, plans = planned(*EVERY)
    history = _read(stopped, config, plans)
    path = stopped.rollouts("rlvr")
    edited = b"more" + path.read_bytes()
    path.write_bytes(edited)
    with pytest.raises(ResumeError, match=r"rlvr\.jsonl has changed"):
        clear_the_way(stopped, plans, history)
    assert path.read_bytes() == edited


def test_a_finished_stage_keeps_its_alarms() -> None:
    record = AlarmRecord(
        name="equal_scores",
        stage="rlvr",
        count=2,
        first_step=1,
        last_step=2,
        metric="critic/score/max",
        worst=0.0,
        excess=0.0,
    )
    result = StageResult()
    result.restore(StageProgress(stage="rlvr", step=2, alarms={"records": {"equal_scores": asdict(record)}}))
    assert result.alarms == {"equal_scores": record}


def test_other_weights_of_the_same_shape_under_the_name_of_a_model_are_seen(
    planned: Planned, task: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(task / "tokenizer", tmp_path / "model")
    (model / "config.json").write_text("{}")
    weights = bytearray(3 * 2**16)
    digests = set()
    for changed in (None, 0, 2**16 + 5, len(weights) - 1):
        if changed is not None:
            weights[changed] ^= 1
        (model / "model.safetensors").write_bytes(weights)
        _, (plan,) = planned(f"stages.rlvr.model={{source: pretrained, path: {model}}}")
        digests.add(plan.digest())
    assert len(digests) == 4


def test_a_key_that_came_later_had_its_default(planned: Planned, stopped: RunDirectory) -> None:
    config = stopped.checkpoints("rlvr") / "step_3" / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "over_provision" not in line))
    beside = config.parent.rename(config.parent.with_name("step_3.tmp"))
    (beside / "manifest.json").unlink()
    commit(beside, config.parent)
    assert _read(stopped, *planned(*EVERY))["rlvr"].progress.step == 3
    with pytest.raises(ResumeError, match=r"over_provision\.defer: not there in the checkpoint"):
        _read(stopped, *planned(*EVERY, "stages.rlvr.rollout.over_provision={prompts: 1}"))
