"""Preparations: callables that fill a directory once, before the stages of a run. Called by the pipelines.

A marker file in the directory records which callable filled it with which arguments. It is written last and
the directory appears under its name by one rename, so a directory with a marker is whole.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from roll_launch.callable_path import resolve_callable
from roll_launch.errors import RollLaunchError

MARKER = ".preparation.json"
"""The marker's file name. It holds `{"callable": "package.module:function", "arguments": {"seed": 0}}`."""


class PreparationError(RollLaunchError):
    """A preparation cannot run, failed, or its directory holds something else."""


def run_preparation(callable_path: str, directory: Path, arguments: Mapping[str, object]) -> bool:
    """Fills `directory` by calling `callable_path`, unless the same preparation filled it before.

    The callable is called as `callable(directory=<an empty temporary directory>, **arguments)`. Two
    processes may prepare the same directory at once: one of the two results is kept. Nothing that was there
    is ever removed.

    Args:
        callable_path: `"package.module:function"`.
        directory: where the files will be; parents are made.
        arguments: what JSON can hold.

    Returns:
        Whether the callable ran and its files are the ones in `directory`.

    Raises:
        CallablePathError: if there is no such callable.
        PreparationError: if `directory` holds other files or another preparation, if the callable raised,
            or if the arguments are not JSON.
    """
    directory = Path(directory)
    marker = _marker(callable_path, arguments)
    if _is_prepared(directory, marker):
        return False
    prepare = resolve_callable(callable_path)
    scratch = directory.parent / f".{directory.name}.{uuid4().hex}.partial"
    scratch.mkdir(parents=True)
    try:
        try:
            prepare(directory=scratch, **arguments)
        # The boundary to a user's callable: whatever it raises becomes one message.
        except (Exception, SystemExit) as error:
            raise PreparationError(
                f"preparation {callable_path} for {directory} raised {type(error).__name__}: {error}"
            ) from error
        _write_marker(scratch / MARKER, marker)
        return _put_in_place(scratch, directory, marker)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _marker(callable_path: str, arguments: Mapping[str, object]) -> str:
    try:
        return json.dumps({"callable": callable_path, "arguments": dict(arguments)}, sort_keys=True, indent=1)
    except TypeError as error:
        raise PreparationError(
            f"preparation {callable_path}: got arguments {dict(arguments)!r}; "
            f"allowed are values that JSON can hold ({error})"
        ) from error


def _is_prepared(directory: Path, marker: str) -> bool:
    """True if `directory` holds this preparation, False if it is free; anything else is an error."""
    if not directory.exists() and not directory.is_symlink():
        return False
    if not directory.is_dir():
        raise PreparationError(f"preparation directory {directory} is not a directory")
    try:
        found = (directory / MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        if not any(directory.iterdir()):
            return False
        raise PreparationError(
            f"preparation directory {directory} holds files that no preparation wrote; "
            "name another directory, or move them away"
        ) from None
    if found == marker:
        return True
    raise PreparationError(
        f"preparation directory {directory} holds another preparation:\n{found}\nasked for is:\n{marker}\n"
        "name another directory, or remove that one"
    )


def _write_marker(path: Path, marker: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(marker)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(scratch: Path, directory: Path, marker: str) -> bool:
    try:
        scratch.rename(directory)
    except OSError as error:
        # Another process may have put the same preparation there meanwhile.
        if _is_prepared(directory, marker):
            return False
        raise PreparationError(f"cannot move the prepared files to {directory}: {error}") from error
    return True
