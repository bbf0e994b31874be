"""Weights through a directory that learner and engines see: safetensors, complete or not there at all."""

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roll_rollout.sync.manifest import Manifest, TensorRecord
from roll_rollout.sync.packing import check_tensor
from roll_rollout.sync.transport import AdapterHeader, Arrival, Publication, SyncError, check_publication
from roll_rollout.weight_digest import Digester
from roll_rollout.weight_files import write_safetensors
from roll_rollout.weights import TensorBytes

KIND = "directory"
FILE_BYTES = 1 << 28

_PARTIAL = ".partial-"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    path: str
    checksum: str


class DirectorySender:
    """Writes each publication as a folder `version-N` of safetensors files, which Hugging Face loaders read.

    A folder gets its name when all its files are on the disk. What a killed sender left half-written is
    removed by the next one.

    Args:
        path: Belongs to this sender; it is made if it is not there.
        file_bytes: Most bytes of tensors in one file, which are in memory at a time; a larger tensor has a
            file of its own.
        keep: Publications that stay; None keeps all until they are retired.

    Raises:
        SyncError: The directory cannot be made.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, keep: int | None = 1) -> None:
        self._path = path.absolute()
        self._file_bytes = file_bytes
        self._keep = keep
        self._held: list[int] = []
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SyncError(f"{KIND}: {self._path} cannot be made: {error}") from error
        for left in self._path.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Writes the files, then the name. See `Sender.publish`."""
        partial = self._path / f"{_PARTIAL}{version}-{secrets.token_hex(4)}"
        final = self._folder(version)
        try:
            partial.mkdir()
            manifest = _written(tensors, partial, version, adapter, self._file_bytes)
            # A version that an earlier run left here.
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            _sync(self._path)
        except OSError as error:
            raise SyncError(f"{KIND}: version {version} cannot be written to {final}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._held = [*(each for each in self._held if each != version), version]
        while self._keep is not None and len(self._held) > self._keep:
            self.retire(self._held[0])
        return Publication(
            version=version,
            checksum=manifest.checksum,
            size=manifest.size,
            transport=KIND,
            handle=_Folder(path=str(final), checksum=manifest.checksum),
        )

    def retire(self, version: int) -> None:
        """Removes the folder of a version. See `Sender.retire`."""
        if version in self._held:
            self._held.remove(version)
            shutil.rmtree(self._folder(version), ignore_errors=True)

    def close(self) -> None:
        """Removes all folders. See `Sender.close`."""
        for version in list(self._held):
            self.retire(version)

    def _folder(self, version: int) -> Path:
        return self._path / f"version-{version:06d}"


class DirectoryReceiver:
    """Reads publications from the directory, mapped and not copied."""

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns views of the files. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        folder = publication.handle
        if not isinstance(folder, _Folder):
            raise SyncError(f"{KIND}: the publication holds {type(folder).__name__}")
        path, where = Path(folder.path), f"{KIND}: version {publication.version} at {folder.path}"
        try:
            index = json.loads((path / _MANIFEST).read_bytes())
            manifest = Manifest.decoded(index["manifest"].encode())
            if manifest.checksum != folder.checksum:
                raise SyncError(f"{where}: another publication is there, with {manifest.checksum}")
            files = {name: np.memmap(path / name, np.uint8, mode="c") for name in index["files"]}
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise SyncError(f"{where} cannot be read: {error}") from error
        payloads = []
        for record, (file, start) in zip(manifest.records, index["places"], strict=True):
            data = np.asarray(files[file])[start : start + record.size]
            if data.size < record.size:
                raise SyncError(f"{where}: {file} ends before tensor {record.name!r} does")
            payloads.append(data)
        return manifest.arrival_of(payloads)

    def release(self, publication: Publication) -> None:
        """Holds nothing of its own. See `Receiver.release`."""

    def close(self) -> None:
        """Holds nothing of its own. See `Receiver.close`."""


def _written(
    tensors: Iterable[TensorBytes],
    directory: Path,
    version: int,
    adapter: AdapterHeader | None,
    file_bytes: int,
) -> Manifest:
    """Writes all files of a publication, and syncs them to the disk."""
    records: dict[str, TensorRecord] = {}
    files: list[str] = []
    places: list[tuple[str, int]] = []
    pending: list[TensorBytes] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if not pending:
            return
        name = f"model-{len(files) + 1:05d}.safetensors" if adapter is None else "adapter_model.safetensors"
        files.append(name)
        places.extend(_write_file(pending, directory / name))
        pending.clear()
        size = 0

    with Digester() as digester:
        for name, dtype, shape, payload in tensors:
            check_tensor(name, dtype, shape, payload, records)
            if adapter is None and pending and size + payload.size > file_bytes:
                flush()
            digest = digester.digest(name, dtype, shape, payload)
            records[name] = TensorRecord(name=name, dtype=dtype, shape=shape, start=0, digest=digest)
            pending.append((name, dtype, shape, payload))
            size += payload.size
    flush()
    manifest = Manifest(
        version=version, algorithm=digester.algorithm, records=tuple(records.values()), adapter=adapter
    )
    texts: dict[str, object] = {
        _MANIFEST: {"manifest": manifest.encoded().decode(), "files": files, "places": places}
    }
    if adapter is None:
        weight_map = {name: file for name, (file, _) in zip(records, places, strict=True)}
        texts["model.safetensors.index.json"] = {"metadata": {}, "weight_map": weight_map}
    for name, value in texts.items():
        (directory / name).write_text(json.dumps(value), encoding="utf-8")
    if adapter is not None:
        (directory / "adapter_config.json").write_text(adapter.config.peft_json(), encoding="utf-8")
    for file in directory.iterdir():
        _sync(file)
    _sync(directory)
    return manifest


def _write_file(tensors: Sequence[TensorBytes], file: Path) -> list[tuple[str, int]]:
    """Returns where each tensor lies."""
    start = write_safetensors(tensors, file)
    places = []
    for *_, payload in tensors:
        places.append((file.name, start))
        start += payload.size
    return places


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
