"""Ctrl-C: a quick end, an honest report, nothing left behind, and a run that can go on."""

import os
import signal
import time
from pathlib import Path

import pytest
from background_run import BackgroundRun, none_left
from launched_run import QUICKSTART, SHORT

LONG = (*SHORT, "stages.rlvr.steps=100000", "stages.rlvr.evaluation.every=100000")


def _run(workspace: Path, *overrides: str) -> BackgroundRun:
    directory = workspace / "run"
    arguments = ["run", str(QUICKSTART), "--run-dir", str(directory), *overrides]
    return BackgroundRun(arguments, workspace=workspace, directory=directory)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runtime", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_ctrl_c_ends_in_ten_seconds_and_leaves_nothing(short_workspace: Path, runtime: str) -> None:
    run = _run(short_workspace, f"runtime={runtime}", *LONG)
    run.wait_for_step("rlvr", 2)
    started = run.descendants()
    began = time.monotonic()
    # As a terminal does it: to the whole group.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(30) == 130, run.screen()
    assert time.monotonic() - began < 10
    assert none_left(started)
    assert list((short_workspace / "t").glob("roll-*")) == []
    assert '"status": "interrupted"' in (run.directory / "summary.json").read_text()
