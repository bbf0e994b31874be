"""All processes of a sandbox: how much memory they use together, and their end."""

import contextlib
import os
import signal
from pathlib import Path

_MIB = 2**20
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watched:
    """The processes that a program has become."""

    def __init__(self, *, alone: bool, first: int) -> None:
        """Args:
        alone: Whether the caller is process 1: then everybody else belongs to the program.
        first: The program's first process.
        """
        self._alone = alone
        self._first = first

    def memory_mb(self, *, enough: float) -> float:
        """Memory in use by all of them together, in MiB.

        Pages that several share are counted once only if the simple sum exceeds `enough`, because
        that takes longer to find out.

        Args:
            enough: See above, in MiB.
        """
        everyone = everybody_else() if self._alone else descendants(os.getpid())
        simple = sum(_resident(process) for process in everyone) / _MIB
        if simple <= enough:
            return simple
        return sum(_proportional(process) for process in everyone) / _MIB


def everybody_else() -> set[int]:
    """Every process that can be seen, but the caller."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    return set()


def descendants(ancestor: int) -> set[int]:
    """Every process below another one.

    Args:
        ancestor: Its process id.
    """
    parents: dict[int, int] = {}
    for entry in everybody_else():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[entry] = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
    found: set[int] = set()
    fresh = {ancestor}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def children(*, alone: bool) -> bool:
    """Whether the caller still has a child, after reaping those that ended.

    Args:
        alone: Whether the caller is process 1.
    """
    with contextlib.suppress(ChildProcessError):
        # Process 1 has just killed everybody: it can wait for the end of each.
        while os.waitpid(-1, 0 if alone else os.WNOHANG)[0]:
            pass
        return True
    return False


def kill_all(*, alone: bool, user: int | None) -> None:
    """Kill every process of a sandbox but the caller.

    Args:
        alone: Whether the caller is process 1; then one call reaches everybody, atomically.
        user: The user that only the sandbox's programs are, if there is one.
    """
    if alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    if user is not None:
        killer = os.fork()
        if killer == 0:
            with contextlib.suppress(OSError):
                os.setresuid(user, user, user)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(killer, 0)
    for process in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _resident(process: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/statm").read_bytes().split()[1]) * _PAGE
    return 0


def _proportional(process: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(process)
