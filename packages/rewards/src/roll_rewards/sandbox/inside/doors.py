"""Ways for another user into directories that it may read but not reach, as those below a closed home."""

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

FIRST, LAST = 80, 99
"""Numbers of the file descriptors that programs keep open for this; the last one is for their rules."""


def open_doors(paths: Iterable[str]) -> None:
    """Let modules be found through open directories instead of by their paths, where these are barred.

    Changes `sys.path` and `sys.executable` of this process and of its forks. Only root may need this:
    it becomes another user afterwards.

    Args:
        paths: Directories with programs and modules.

    Raises:
        OSError: One of the directories cannot be opened.
    """
    barred = [path for path in sorted(set(paths)) if not _reachable(path)]
    for number, path in zip(range(FIRST, LAST), barred, strict=False):
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY)
        os.dup2(handle, number, inheritable=True)
        os.close(handle)
        door = f"/proc/self/fd/{number}"
        sys.path[:] = [_through(door, path, entry) for entry in sys.path]
        sys.executable = _through(door, path, sys.executable)
        for module in list(sys.modules.values()):
            where = getattr(module, "__path__", None)
            if isinstance(where, list):
                where[:] = [_through(door, path, entry) for entry in where]


def _through(door: str, path: str, entry: str) -> str:
    if entry == path or entry.startswith(path + "/"):
        return door + entry[len(path) :]
    return entry


def _reachable(path: str) -> bool:
    """Whether any user may pass all directories above."""
    above = [str(parent) for parent in PurePosixPath(path).parents]
    return all(os.stat(directory).st_mode & stat.S_IXOTH for directory in above)
