"""A control group around a sandbox, where this process may make one: a second fence around its processes."""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TRIES, _PAUSE_S = 50, 0.02


_PIDS, _MEMORY = ("pids.max",), ("memory.max", "memory.limit_in_bytes")
_KILLS = ("memory.events", "memory.oom_control")
"""Files of cgroup v2 and v1: limits, and where the kernel counts what it killed."""


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """Control groups of one sandbox, below those that this process is in.

    Attributes:
        directories: The group in each hierarchy; one of them counts processes.
        limits: What is set now, by file.
    """

    directories: list[Path] = field(default_factory=list)
    limits: dict[Path, int] = field(default_factory=dict)

    @staticmethod
    def create(number: int) -> "ProcessGroup | None":
        """A group for one sandbox; None where the kernel or the system does not let it count processes.

        Args:
            number: Different for every sandbox of this process that lives at the same time.
        """
        group, name = ProcessGroup(), f"roll-sandbox-{os.getpid()}-{number}"
        for parent in _own_groups():
            _remove_stale(parent)
            directory = parent / name
            with contextlib.suppress(OSError):
                directory.mkdir()
                group.directories.append(directory)
                if not any((directory / limit).exists() for limit in (*_PIDS, *_MEMORY)):
                    group.directories.pop()
                    directory.rmdir()
        if group._files(_PIDS):
            return group
        group.remove()
        return None

    @property
    def bounds_memory(self) -> bool:
        """Whether the kernel keeps the limit of memory; else it is watched only."""
        return bool(self._files(_MEMORY))

    @property
    def memory_kills(self) -> int:
        """Processes that the kernel has killed at the limit of memory."""
        killed = 0
        for file in self._files(_KILLS):
            with contextlib.suppress(OSError, ValueError):
                lines = dict(line.split() for line in file.read_text().splitlines())
                killed += int(lines.get("oom_kill", 0))
        return killed

    @property
    def entrances(self) -> list[str]:
        """Files that a process writes itself into."""
        return [str(directory / "cgroup.procs") for directory in self.directories]

    def limit(self, *, processes: int, memory_mb: int) -> None:
        """Allow so many processes and threads, and so much memory.

        Args:
            processes: At least 1.
            memory_mb: MiB, of all together, with their files in memory.
        """
        wanted = dict.fromkeys(self._files(_PIDS), processes)
        wanted |= dict.fromkeys(self._files(_MEMORY), memory_mb * 2**20)
        for file, value in wanted.items():
            if self.limits.get(file) != value:
                with contextlib.suppress(OSError):
                    file.write_text(str(value))
                    self.limits[file] = value

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

    def _files(self, names: Sequence[str]) -> list[Path]:
        files = (directory / name for directory in self.directories for name in names)
        return [file for file in files if file.exists()]


def _remove_stale(parent: Path) -> None:
    """Remove groups whose makers were killed before they could do it."""
    for directory in parent.glob("roll-sandbox-*-*"):
        maker = directory.name.split("-")[2]
        if not Path(f"/proc/{maker}").exists():
            with contextlib.suppress(OSError):
                directory.rmdir()


def _own_groups() -> list[Path]:
    """Directories of the groups of this process that may count processes or memory."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                found += [Path("/sys/fs/cgroup" + path), Path("/sys/fs/cgroup/unified" + path)]
            elif {"pids", "memory"} & set(controllers.split(",")):
                found.insert(0, Path(f"/sys/fs/cgroup/{controllers}{path}"))
    return [path for path in found if os.access(path, os.W_OK)]
