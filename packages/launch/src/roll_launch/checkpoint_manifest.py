"""What a checkpoint holds by its manifest, and whether it does. Called by `checkpoint_store`."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from safetensors import SafetensorError, safe_open

from roll_launch.errors import RollLaunchError

MANIFEST = "manifest.json"
"""Written last: a directory without it is no checkpoint."""

INDEX = "model.safetensors.index.json"
"""Says which shard holds which tensor, where weights are in several files."""


class CheckpointError(RollLaunchError):
    """A checkpoint was not written, or one on disk is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What the manifest says of one file: FileRecord(size=5, sha256="5994471abb01112a...").

    Attributes:
        size: Bytes.
        sha256: Hexadecimal.
    """

    size: int
    sha256: str


def write_manifest(directory: Path, names: Iterable[str]) -> None:
    """Writes the manifest of the files `names`, paths within `directory`.

    Raises:
        CheckpointError: An index of shards names what is not there.
        OSError: As the file system raises it.
    """
    names = sorted(names)
    _check_indices(directory, names)
    files = {
        name: {"size": (directory / name).stat().st_size, "sha256": _digest(directory / name)}
        for name in names
    }
    # No line end after it, so that a manifest cut anywhere is no JSON.
    (directory / MANIFEST).write_bytes(json.dumps({"files": files}, indent=2).encode())


def verify(directory: Path) -> None:
    """Returns if every byte of a checkpoint is as it was written; all of it is read, in pieces.

    Files that the manifest does not name are not looked at.

    Raises:
        CheckpointError: There is no manifest, or it cannot be understood; a file is missing, or its size or
            digest is another; an index of shards names a shard or tensor that is not there; or the file
            system refuses. The message names the file, what it is and what was expected.
    """
    try:
        records = _read_manifest(directory / MANIFEST)
        for name, record in records.items():
            _check_size(directory / name, record)
        for name, record in records.items():
            _check_digest(directory / name, record)
        _check_indices(directory, records)
    except OSError as error:
        raise CheckpointError(f"checkpoint {directory} cannot be read: {error}") from error


def _read_manifest(path: Path) -> dict[str, FileRecord]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; expected in every checkpoint that was written to its end")
    content = _read_json(path)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files:
        raise CheckpointError(
            f"{path} holds {_shown(content)}; expected is an object with `files`, not empty"
        )
    return {name: _record(path, name, entry) for name, entry in files.items()}


def _record(path: Path, name: str, entry: object) -> FileRecord:
    if isinstance(entry, dict):
        size, sha256 = entry.get("size"), entry.get("sha256")
        if isinstance(size, int) and not isinstance(size, bool) and isinstance(sha256, str):
            return FileRecord(size=size, sha256=sha256)
    raise CheckpointError(
        f"{path} says of {name!r} {_shown(entry)}; expected is an object with `size`, a number of bytes, and "
        "`sha256`, text"
    )


def _check_size(path: Path, record: FileRecord) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; expected are {record.size} bytes")
    size = path.stat().st_size
    if size != record.size:
        raise CheckpointError(f"{path} has {size} bytes; expected are {record.size}")


def _check_digest(path: Path, record: FileRecord) -> None:
    digest = _digest(path)
    if digest != record.sha256:
        raise CheckpointError(f"{path} has the sha256 {digest}; expected is {record.sha256}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_indices(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        if PurePosixPath(name).name == INDEX:
            _check_index(directory / name)


def _check_index(path: Path) -> None:
    content = _read_json(path)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(
            f"{path} holds {_shown(content)}; expected is `weight_map`, from tensor to shard"
        )
    tensors: dict[str, set[str]] = defaultdict(set)
    for tensor, shard in weight_map.items():
        tensors[shard].add(tensor)
    for shard, expected in sorted(tensors.items()):
        file = path.parent / shard
        absent = sorted(expected - _tensors(file))
        if absent:
            what = "does not" if file.is_file() else "is not there"
            raise CheckpointError(f"{path} says that {shard!r} holds {_named(absent)}, but {file} {what}")


def _tensors(shard: Path) -> frozenset[str]:
    """The names of the tensors in a shard, none if there is no such file."""
    if not shard.is_file():
        return frozenset()
    try:
        with safe_open(shard, framework="numpy") as opened:
            return frozenset(opened.keys())
    except SafetensorError as error:
        raise CheckpointError(f"{shard} is not a safetensors file, as its index says: {error}") from error


def _read_json(path: Path) -> object:
    try:
        content: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}; expected is a JSON object") from error
    return content


def _named(tensors: list[str]) -> str:
    more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
    return ", ".join(map(repr, tensors[:3])) + more


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
