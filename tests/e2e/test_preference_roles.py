"""Reward models, critics and teachers in Ray actors of their own, on the examples made short."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from background_run import BackgroundRun
from launched_run import ROOT, command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHORT = (
    "stages.sft.steps=40",
    "stages.sft.learner.optimizer.warmup_steps=5",
    "stages.rlvr.evaluation.prompts=16",
    "stages.rlvr.rollout.prompts_per_step=8",
    "stages.rlvr.checkpoint.every=2",
)


def _started(workspace: Path, example: str, *overrides: str) -> BackgroundRun:
    directory = workspace / "run"
    arguments = ["run", str(ROOT / "examples" / example), "--run-dir", str(directory), *overrides]
    return BackgroundRun(arguments, workspace=workspace, directory=directory)


def _summary(run: BackgroundRun) -> dict[str, object]:
    return json.loads((run.directory / "summary.json").read_text())


def test_a_reward_model_that_is_killed_is_replaced_and_the_run_goes_on(short_workspace: Path) -> None:
    run = _started(
        short_workspace,
        "reward_model_sort_letters.yaml",
        *SHORT,
        "stages.rm.steps=10",
        "stages.rm.learner.optimizer.warmup_steps=2",
        "stages.rlvr.rollout.group_size=2",
        "stages.rlvr.steps=12",
    )
    run.wait_for_step("rlvr", 2, limit_s=600)
    os.kill(run.worker("RewardModelActor"), signal.SIGKILL)
    assert run.process.wait(600) == 0, run.screen()
    assert _summary(run)["stages"]["rlvr"]["steps"] == 12
    assert "reward-model-judge-0 was replaced and serves" in " ".join(run.screen().split())


def test_a_critic_that_is_killed_ends_the_run_by_its_name_and_a_resume_finishes_it(
    short_workspace: Path,
) -> None:
    run = _started(
        short_workspace,
        "ppo_sort_letters.yaml",
        *SHORT,
        "stages.rlvr.critics.placement=own",
        "stages.rlvr.critics.warmup_steps=1",
        "stages.rlvr.steps=12",
    )
    run.wait_for_step("rlvr", 3, limit_s=600)
    os.kill(run.worker("CriticActor"), signal.SIGKILL)
    assert run.process.wait(600) == 1, run.screen()
    assert "critic-0 died during" in " ".join(str(_summary(run)["cause"]).split())
    done = subprocess.run(
        command("resume", str(run.directory)),
        cwd=short_workspace,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(short_workspace / "t")},
    )
    assert done.returncode == 0, done.stderr
    assert _summary(run)["stages"]["rlvr"]["steps"] == 12


def test_a_teacher_of_its_own_teaches_a_student(short_workspace: Path) -> None:
    run = _started(
        short_workspace,
        "distill_sort_letters.yaml",
        *SHORT[:2],
        "stages.teacher.steps=40",
        "stages.teacher.learner.optimizer.warmup_steps=5",
        "stages.distill.steps=8",
        "stages.distill.learner.optimizer.warmup_steps=1",
        "stages.distill.evaluation.generation.prompts=16",
        "stages.distill.evaluation.every=4",
    )
    assert run.process.wait(600) == 0, run.screen()
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    losses = [line["actor/kd_loss"] for line in lines if "actor/kd_loss" in line]
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert [line["step"] for line in lines if "eval/accuracy" in line] == [0, 4, 8]
