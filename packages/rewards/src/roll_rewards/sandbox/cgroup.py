"""A control group around a sandbox, where this process may make one: a second fence around its processes."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

_TRIES, _PAUSE_S = 50, 0.02


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """Control groups of one sandbox, below those that this process is in.

    Attributes:
        directories: The group in each hierarchy.
        processes: The limit that is set now, 0 before the first.
    """

    directories: list[Path] = field(default_factory=list)
    processes: int = 0

    @staticmethod
    def create(number: int) -> "ProcessGroup | None":
        """A group for one sandbox; None where the kernel or the system does not allow it.

        Args:
            number: Different for every sandbox of this process that lives at the same time.
        """
        name = f"roll-sandbox-{os.getpid()}-{number}"
        for parent in _own_groups():
            _remove_stale(parent)
            directory = parent / name
            try:
                directory.mkdir()
            except OSError:
                continue
            if (directory / "pids.max").exists():
                return ProcessGroup(directories=[directory])
            with contextlib.suppress(OSError):
                directory.rmdir()
        return None

    @property
    def entrances(self) -> list[str]:
        """Files that a process writes itself into."""
        return [str(directory / "cgroup.procs") for directory in self.directories]

    def limit(self, *, processes: int) -> None:
        """Allow so many processes and threads.

        Args:
            processes: At least 1.
        """
        if processes != self.processes:
            for directory in self.directories:
                with contextlib.suppress(OSError):
                    (directory / "pids.max").write_text(str(processes))
            self.processes = processes

    def remove(self) -> None:
        """Remove the groups, whose processes are gone or just going."""
        for directory in self.directories:
            for _ in range(_TRIES):
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(_PAUSE_S)
                else:
                    break


def _remove_stale(parent: Path) -> None:
    """Remove groups whose makers were killed before they could do it."""
    for directory in parent.glob("roll-sandbox-*-*"):
        maker = directory.name.split("-")[2]
        if not Path(f"/proc/{maker}").exists():
            with contextlib.suppress(OSError):
                directory.rmdir()


def _own_groups() -> list[Path]:
    """Directories of the groups of this process that may count processes."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                found += [Path("/sys/fs/cgroup" + path), Path("/sys/fs/cgroup/unified" + path)]
            elif "pids" in controllers.split(","):
                found.insert(0, Path(f"/sys/fs/cgroup/{controllers}{path}"))
    return [path for path in found if os.access(path, os.W_OK)]
