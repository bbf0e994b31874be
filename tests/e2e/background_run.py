"""A run in the background that a test watches, interrupts and kills."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launched_run import command


class BackgroundRun:
    """`roll-launch` in a process group of its own.

    Args:
        arguments: Of roll-launch, such as `["resume", "run"]`.
        workspace: Working directory; temporary files go into its `t`, Ray's sockets too, so keep it short.
        directory: Of the run.
    """

    def __init__(self, arguments: Sequence[str], *, workspace: Path, directory: Path) -> None:
        self.directory = directory
        self._screen = workspace / "screen.txt"
        (workspace / "t").mkdir(exist_ok=True)
        with self._screen.open("w") as screen:
            self.process = subprocess.Popen(
                command(*arguments),
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

    def workers(self, name: str) -> list[int]:
        """The processes of the Ray actor class `name`."""
        found = []
        for pid in self.descendants():
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if title.startswith(f"ray::{name}") and alive({pid}):
                found.append(pid)
        return found

    def worker(self, name: str) -> int:
        """The process of the Ray actor class `name`."""
        found = self.workers(name)
        assert found, f"no process ray::{name}\n{self.screen()}"
        return found[0]

    def kill(self) -> None:
        """SIGKILL to the driver alone."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        """For a test that has failed: nothing of the run stays."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


def alive(processes: set[int]) -> set[int]:
    """Those that run still."""
    return {pid for pid in processes if Path(f"/proc/{pid}").exists() and "Z" not in _state(pid)}


def none_left(processes: set[int], *, limit_s: float = 10) -> bool:
    """Whether all of them end in time."""
    until = time.monotonic() + limit_s
    while alive(processes) and time.monotonic() < until:
        time.sleep(0.1)
    return not alive(processes)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
