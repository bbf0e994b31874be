"""`roll-launch resume`, as a user types it."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from background_run import BackgroundRun
from kill_campaign import CONFIG, every_step_once, ledger, numbers, weights
from launched_run import Finished, command


def _resume(workspace: Path, *arguments: str) -> Finished:
    done = subprocess.run(
        command("resume", *arguments),
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr, directory=workspace / "run")


def _start(workspace: Path, name: str) -> BackgroundRun:
    (workspace / "kills.yaml").write_text(CONFIG.replace("RUNTIME", "local"))
    directory = workspace / name
    return BackgroundRun(
        ["run", "kills.yaml", "--run-dir", str(directory)], workspace=workspace, directory=directory
    )


@pytest.fixture
def undisturbed(workspace: Path) -> Path:
    run = _start(workspace, "undisturbed")
    assert run.process.wait(170) == 0, run.screen()
    return run.directory


@pytest.mark.timeout(240)
def test_a_run_goes_on_after_ctrl_c_with_bit_identical_losses_rewards_and_weights(
    workspace: Path, undisturbed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = _start(workspace, "run")
    # After an odd step: the interruption itself writes the checkpoint that a resume goes on from.
    run.wait_for_step("rlvr", 5)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) == 130, run.screen()
    summary = json.loads((run.directory / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    stopped_at = summary["stages"]["rlvr"]["steps"]
    # From another directory: relative paths are meant from where the run was started.
    done = _resume(tmp_path_factory.mktemp("elsewhere"), str(run.directory))
    assert done.code == 0, done.err
    told = " ".join((done.out + done.err).split())
    assert f"pretrain is finished, rlvr goes on after step {stopped_at} of 24" in told
    assert ledger(run.directory) == ledger(undisturbed)
    assert every_step_once(run.directory)
    assert numbers(run.directory) == numbers(undisturbed)
    assert weights(run.directory) == weights(undisturbed)
    assert json.loads((run.directory / "summary.json").read_text())["steps"] == 36
    again = _resume(workspace, str(run.directory))
    assert again.code == 0 and "rlvr is finished" in " ".join((again.out + again.err).split())


@pytest.mark.timeout(180)
def test_a_resume_that_cannot_be_says_why_in_a_moment(workspace: Path) -> None:
    nothing = _resume(workspace, "nothing")
    assert nothing.code == 2 and "nothing holds no run" in nothing.err
    run = _start(workspace, "run")
    run.wait_for_step("rlvr", 2)
    running = _resume(workspace, "run")
    assert running.code == 2 and "in use by another process" in running.err
    run.kill()
    other = _resume(workspace, "run", "stages.rlvr.learner.optimizer.learning_rate=0.5")
    assert other.code == 2
    assert "stages.rlvr.learner.optimizer.learning_rate: 0.001 in the checkpoint, 0.5 now" in other.err
    (run.directory / "config.yaml").write_text("name: 5\n")
    broken = _resume(workspace, "run")
    assert broken.code == 2 and "config.yaml" in broken.err


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_run_begun_without_ray_goes_on_under_it(workspace: Path, undisturbed: Path) -> None:
    run = _start(workspace, "run")
    run.wait_for_step("rlvr", 3)
    run.kill()
    done = _resume(workspace, "run", "runtime=ray")
    assert done.code == 0, done.err
    assert ledger(run.directory) == ledger(undisturbed)


@pytest.mark.timeout(120)
def test_the_command_line_describes_resume(launch: Callable[..., Finished]) -> None:
    done = subprocess.run(command("resume", "--help"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "RUN_DIR" in done.stdout
