"""Emptying a directory that a hostile program has written to. Where no fresh file system is mounted."""

import contextlib
import itertools
import os
import stat


def empty(directory: str) -> None:
    """Remove everything in a directory, however deep, whatever its names and permissions.

    Subdirectories are moved up before they are emptied, so that neither a path's length nor its depth
    matters; links are removed, never followed.

    Args:
        directory: Keeps existing.
    """
    numbers = itertools.count()
    os.chmod(directory, 0o700)
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            names = os.listdir(root)
            if not names:
                return
            for name in names:
                _remove(root, name, numbers)
    finally:
        os.close(root)


def overfull(directory: str, *, size_mb: float) -> bool:
    """Whether a directory holds more than it may. Where no file system of its own has a size.

    Args:
        directory: With everything below it.
        size_mb: Most space in MiB; there may be 64 entries for each.
    """
    # A little more, so that one file of the largest size is still allowed.
    most = (size_mb + 1) * 2**20
    space, entries, todo = 0, 0, [directory]
    while todo:
        try:
            with os.scandir(todo.pop()) as found:
                for entry in found:
                    entries += 1
                    space += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    if space > most or entries > max(1024, size_mb * 64):
                        return True
        except OSError:
            # Removed meanwhile, or a path that has become too long: the program's own affair.
            continue
    return False


def _remove(root: int, name: str, numbers: "itertools.count[int]") -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(name, dir_fd=root).st_mode):
            os.unlink(name, dir_fd=root)
            return
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=root)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        try:
            for entry in os.listdir(below):
                if stat.S_ISDIR(os.lstat(entry, dir_fd=below).st_mode):
                    with contextlib.suppress(OSError):
                        os.chmod(entry, 0o700, dir_fd=below)
                    _move_up(below, entry, root, numbers)
                else:
                    os.unlink(entry, dir_fd=below)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=root)


def _move_up(below: int, entry: str, root: int, numbers: "itertools.count[int]") -> None:
    for number in numbers:
        try:
            os.rename(entry, f"moved-{number}", src_dir_fd=below, dst_dir_fd=root)
        except (FileExistsError, NotADirectoryError, OSError) as error:
            if isinstance(error, FileExistsError | NotADirectoryError) or error.errno == 39:
                continue
            raise
        return
