"""Ctrl-C and dying processes: quick ends, honest reports, nothing left behind."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched_run import QUICKSTART, SHORT, command

LONG = (*SHORT, "stages.rlvr.steps=100000", "stages.rlvr.evaluation.every=100000")


class _Run:
    """A run in the background, in a process group of its own."""

    def __init__(self, workspace: Path, *overrides: str) -> None:
        self.directory = workspace / "run"
        self._screen = workspace / "screen.txt"
        with self._screen.open("w") as screen:
            self.process = subprocess.Popen(
                command("run", str(QUICKSTART), "--run-dir", str(self.directory), *overrides),
                cwd=workspace,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(workspace / "t")},
            )

    def wait_for_step(self, stage: str, step: int, *, limit_s: float = 150) -> None:
        """Returns once the metrics have a step of a stage."""
        until = time.monotonic() + limit_s
        metrics = self.directory / "metrics.jsonl"
        while time.monotonic() < until:
            assert self.process.poll() is None, self.screen()
            if metrics.exists() and f'"stage": "{stage}", "step": {step}' in metrics.read_text():
                return
            time.sleep(0.1)
        raise AssertionError(f"step {step} of {stage} did not come:\n{self.screen()}")

    def screen(self) -> str:
        """What the run has printed."""
        return self._screen.read_text()

    def descendants(self) -> set[int]:
        """Processes that the run has started, and theirs."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, IndexError):
                    continue
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}

    def worker(self, name: str) -> int:
        """The process of the Ray actor class `name`."""
        for pid in self.descendants():
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if title.startswith(f"ray::{name}"):
                return pid
        raise AssertionError(f"no process ray::{name}\n{self.screen()}")


@pytest.fixture
def workspace() -> Iterator[Path]:
    """Short, because Ray makes Unix sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    (folder / "t").mkdir()
    yield folder
    shutil.rmtree(folder)


def _alive(processes: set[int]) -> set[int]:
    return {pid for pid in processes if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _none_left(processes: set[int], *, limit_s: float = 10) -> bool:
    until = time.monotonic() + limit_s
    while _alive(processes) and time.monotonic() < until:
        time.sleep(0.1)
    return not _alive(processes)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runtime", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_ctrl_c_ends_in_ten_seconds_and_leaves_nothing(workspace: Path, runtime: str) -> None:
    run = _Run(workspace, f"runtime={runtime}", *LONG)
    run.wait_for_step("rlvr", 2)
    started = run.descendants()
    began = time.monotonic()
    # As a terminal does it: to the whole group.
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(30) == 130, run.screen()
    assert time.monotonic() - began < 10
    assert _none_left(started)
    assert list((workspace / "t").glob("roll-*")) == []
    assert '"status": "interrupted"' in (run.directory / "summary.json").read_text()


@pytest.mark.timeout(240)
@pytest.mark.slow
@pytest.mark.parametrize("actor", ["RolloutActor", "TrainerActor", "RewardActor"])
def test_a_killed_actor_ends_the_run_with_its_cause_last_and_nothing_left(
    workspace: Path, actor: str
) -> None:
    run = _Run(workspace, *LONG)
    run.wait_for_step("rlvr", 2)
    started = run.descendants()
    os.kill(run.worker(actor), signal.SIGKILL)
    assert run.process.wait(60) == 1, run.screen()
    screen = run.screen().strip().splitlines()
    role = {"RolloutActor": "actor-0", "TrainerActor": "trainer", "RewardActor": "reward-0"}[actor]
    assert f"RoleDied: {role} died during" in screen[-1], run.screen()
    assert len(screen) < 60
    assert _none_left(started)


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_killed_driver_leaves_no_process(workspace: Path) -> None:
    run = _Run(workspace, *LONG)
    run.wait_for_step("rlvr", 1)
    started = run.descendants()
    run.process.kill()
    run.process.wait(10)
    assert _none_left(started, limit_s=20)
    assert list((workspace / "t").glob("roll-*")) == []
