"""Checkpoints on disk: visible only when whole, the newest found, the oldest removed.

Called by `pipelines/checkpoints.py` while a stage trains, and by whoever resumes one. One process at a time
writes into a directory of checkpoints. What may lie in it:

    step_20            a checkpoint, if its manifest says so
    step_30.tmp        one being written, or left over from a killed write; removed by the next `prepare`
    step_20.old        the earlier step_20, while another takes its place; moved back if that was killed
    step_10.removed    one being removed, or left over from a killed removal
    step_40.broken     one that a resumed run has set aside, for a person to look at
"""

import logging
import os
import re
import shutil
from pathlib import Path

from roll_launch.checkpoint_manifest import MANIFEST, CheckpointError, verify, write_manifest

__all__ = [
    "MANIFEST", "CheckpointError", "commit", "discard", "newest", "prepare", "put_aside", "refuse_empty",
    "rotate", "set_aside", "verify",
]  # fmt: skip

logger = logging.getLogger(__name__)

STEP = re.compile(r"step_(0|[1-9][0-9]*)")
UNFINISHED, EARLIER, REMOVED, BROKEN = ".tmp", ".old", ".removed", ".broken"
MEANING = {
    UNFINISHED: "it was not written to its end",
    EARLIER: "another has taken its place",
    REMOVED: "it was being removed",
    BROKEN: "it was set aside",
}


def prepare(target: Path) -> Path:
    """An empty directory beside `target` to write into; what killed writes and removals left is cleared.

    Args:
        target: Where the checkpoint will be, such as `checkpoints/step_20`. Directories above it are made.

    Raises:
        CheckpointError: The file system refuses.
    """
    beside = _beside(target, UNFINISHED)
    try:
        new = [path for path in beside.parents if not path.exists()]
        if not new:
            _clear_leftovers(target)
        _remove(beside)
        beside.mkdir(parents=True)
        for path in new:
            _to_disk(path.parent)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be written: {error}") from error
    return beside


def commit(beside: Path, target: Path) -> None:
    """Makes a written directory visible under its name: all on disk, manifest, rename, in this order.

    A `target` of an earlier attempt is moved aside for the moment, and `newest` and `prepare` move it back
    should this process die then.

    Args:
        beside: What `prepare` gave, written. It is gone afterwards, also if this fails.
        target: The name to make it visible under.

    Raises:
        CheckpointError: Nothing was written there, an index of shards names what is not there, or the file
            system refuses.
    """
    try:
        _complete(beside)
        _put_in_place(beside, target)
    except OSError as error:
        discard(beside)
        raise CheckpointError(f"checkpoint {target} was not written: {error}") from error
    except CheckpointError:
        discard(beside)
        raise
    _remove_or_warn(_beside(target, EARLIER))


def refuse_empty(beside: Path) -> None:
    """To be called when a worker says that it has written, before the driver adds files of its own.

    Raises:
        CheckpointError: Nothing is there.
    """
    if not _tree(beside)[0]:
        raise CheckpointError(
            f"nothing was written to {beside}: the machine of the trainer does not share this path"
        )


def put_aside(path: Path) -> None:
    """Renames what is there to NAME.broken, NAME.broken-2, ..., with a warning; nothing is there: fine.

    Raises:
        CheckpointError: The file system refuses.
    """
    if not os.path.lexists(path):
        return
    try:
        aside = _free(path.with_name(path.name + BROKEN))
        path.rename(aside)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be set aside: {error}") from error
    logger.warning("%s is set aside as %s: it will be made anew", path, aside.name)


def discard(beside: Path) -> None:
    """Gives back the space of a checkpoint that will not be committed, as far as the file system lets it."""
    shutil.rmtree(beside, ignore_errors=True)


def newest(root: Path) -> Path | None:
    """The complete checkpoint with the highest step number in `root`, or None if there is none.

    Every other `step_*` that could have been meant is logged as a warning that says why it was passed over,
    and so are links to what is not there. All bytes of the candidates are read.

    Raises:
        CheckpointError: The directory cannot be read, or a checkpoint left aside by a killed `commit` cannot
            be moved back.
    """
    try:
        for path in _entries(root):
            if STEP.fullmatch(path.stem):
                _recover(path)
        steps = _steps(root)
        for path in _entries(root):
            if path not in steps.values():
                _explain(path)
    except OSError as error:
        raise CheckpointError(f"checkpoints in {root} cannot be looked through: {error}") from error
    for _, path in sorted(steps.items(), reverse=True):
        try:
            verify(path)
        except CheckpointError as error:
            logger.warning("checkpoint %s is passed over: %s", path, error)
        else:
            return path
    return None


def set_aside(root: Path, *, after: int) -> None:
    """Renames every step_N with N > `after` to step_N.broken, step_N.broken-2, ..., with a warning.

    A run that resumes at step `after` will write these steps anew.

    Raises:
        CheckpointError: The file system refuses.
    """
    try:
        # Backwards, so that step_N.old goes before step_N and is never taken for one to move back.
        for path in reversed(_entries(root)):
            name = path.name.removesuffix(EARLIER)
            step = STEP.fullmatch(name)
            if step and int(step[1]) > after:
                broken = _free(path.with_name(name + BROKEN))
                path.rename(broken)
                logger.warning(
                    "%s is set aside as %s: the run goes on from step %d", path, broken.name, after
                )
    except OSError as error:
        raise CheckpointError(f"checkpoints in {root} cannot be set aside: {error}") from error


def rotate(root: Path, *, keep: int, just_saved: int | None = None) -> list[Path]:
    """Removes what is older than the newest `keep` complete checkpoints, and returns what it removed.

    A checkpoint that is not complete does not count. To know, all bytes are read of as many as are kept,
    except of the one just saved. One that cannot be removed is logged as a warning.

    Args:
        root: The directory of the checkpoints.
        keep: How many, >= 1.
        just_saved: The step that this run wrote last. It is never removed, and higher steps, which are not
            of this run, neither count nor go.

    Raises:
        CheckpointError: `keep` is less than 1, or the directory cannot be read.
    """
    if keep < 1:
        raise CheckpointError(f"got keep {keep} for the checkpoints in {root}; allowed are 1 and more")
    try:
        for path in _entries(root):
            if path.name.endswith(REMOVED) and STEP.fullmatch(path.name.removesuffix(REMOVED)):
                _remove_or_warn(path)
        steps = _steps(root)
    except OSError as error:
        raise CheckpointError(f"checkpoints in {root} cannot be looked through: {error}") from error
    counted = sorted((step for step in steps if just_saved is None or step <= just_saved), reverse=True)
    if len(counted) <= keep:
        return []
    complete = 0
    for index, step in enumerate(counted):
        if complete == keep:
            return [steps[old] for old in reversed(counted[index:]) if _removed(steps[old])]
        complete += step == just_saved or _is_complete(steps[step])
    return []


def _complete(beside: Path) -> None:
    """All bytes to disk, then the manifest, so that no crash leaves a manifest without what it names."""
    refuse_empty(beside)
    files, directories = _tree(beside)
    for path in files:
        _to_disk(path)
    write_manifest(beside, [path.relative_to(beside).as_posix() for path in files])
    for path in [beside / MANIFEST, *directories]:
        _to_disk(path)


def _put_in_place(beside: Path, target: Path) -> None:
    earlier = _beside(target, EARLIER)
    replaces = os.path.lexists(target)
    if replaces:
        _remove(earlier)
        target.rename(earlier)
    try:
        beside.rename(target)
    except OSError:
        if replaces:
            earlier.rename(target)
        raise
    _to_disk(target.parent)


def _tree(directory: Path) -> tuple[list[Path], list[Path]]:
    """All files below a directory, and all directories with itself."""
    files: list[Path] = []
    directories: list[Path] = []
    for parent, _, names in os.walk(directory, onerror=_raise):
        directories.append(Path(parent))
        files += [Path(parent) / name for name in names]
    return sorted(files), directories


def _raise(error: OSError) -> None:
    """os.walk would leave out silently what it cannot read."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.exists() else []


def _steps(root: Path) -> dict[int, Path]:
    return {int(match[1]): path for path in _entries(root) if (match := STEP.fullmatch(path.name))}


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _free(path: Path) -> Path:
    """`path` if nothing is there, or else the first of path-2, path-3, ..."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _clear_leftovers(target: Path) -> None:
    """Clears what belongs to `target`, and, where it is a step, to every step beside it."""
    for path in _entries(target.parent):
        of_step = STEP.fullmatch(target.name) and STEP.fullmatch(path.stem)
        if path.stem == target.name or of_step:
            _recover(path)
            if path.suffix in (UNFINISHED, EARLIER, REMOVED):
                _remove(path)


def _recover(path: Path) -> None:
    """Moves a checkpoint back that was aside when a `commit` was killed before the new one had its name."""
    target = path.with_suffix("")
    if path.suffix == EARLIER and not os.path.lexists(target):
        path.rename(target)
        logger.warning("checkpoint %s is back: the process that was replacing it died", target)


def _explain(path: Path) -> None:
    """Says why an entry, which is no candidate, was passed over."""
    if path.is_symlink() and not path.exists():
        logger.warning("link %s is passed over: it points at %s, which is not there", path, path.readlink())
    elif path.name.startswith("step_"):
        suffix = "." + path.name.partition(".")[2].partition("-")[0]
        reason = MEANING.get(suffix, "the name is not step_ and a number")
        logger.warning("checkpoint %s is passed over: %s", path, reason)


def _is_complete(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError as error:
        logger.warning("checkpoint %s does not count among those kept: %s", path, error)
        return False
    return True


def _removed(path: Path) -> bool:
    """Whether a checkpoint lost its name, which comes first, so that a kill leaves nothing that has one."""
    doomed = _beside(path, REMOVED)
    try:
        _remove(doomed)
        path.rename(doomed)
    except OSError as error:
        logger.warning("checkpoint %s was not removed: %s", path, error)
        return False
    _remove_or_warn(doomed)
    return True


def _remove_or_warn(path: Path) -> None:
    try:
        _remove(path)
    except OSError as error:
        logger.warning("%s was not removed: %s", path, error)


def _remove(path: Path) -> None:
    """Removes a file, a link or a directory, if it is there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
