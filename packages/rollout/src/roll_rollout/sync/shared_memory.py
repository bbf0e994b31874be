"""Weights for engines in other processes of one host: one copy into shared memory, which all of them read.

The memory is anonymous (`memfd_create`): it has no name in /dev/shm, does not count against its size, and is
freed by the kernel when the last process that has it open ends, however it ends. Receivers open it through
/proc of the sender's process.
"""

import mmap
import os
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roll_rollout.sync.manifest import Manifest, aligned
from roll_rollout.sync.packing import FIRST_BYTES, pack
from roll_rollout.sync.transport import AdapterHeader, Arrival, Publication, SyncError, check_publication
from roll_rollout.weights import TensorBytes

KIND = "shared_memory"

_HEAD = 4096
_FIELDS = struct.Struct("<16sQq")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a publication lies, as receivers are told."""

    boot: str
    path: str
    token: bytes
    writes: int
    manifest_at: int
    manifest_size: int


class _Memory:
    """One piece of shared memory: a head that says what it is, tensors, and their manifest.

    The head counts writes: odd while one is going on, so that a reader knows whether it was overtaken.
    """

    def __init__(self) -> None:
        self.token = secrets.token_bytes(16)
        self.writes = 0
        self.version: int | None = None
        self._file = os.memfd_create("roll-weights")
        self._data = np.empty(0, np.uint8)
        self.at_least(_HEAD + FIRST_BYTES)

    @property
    def path(self) -> str:
        """By which processes of this host and user open it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def at_least(self, size: int) -> np.ndarray:
        """Returns the memory; see `Region`. Of a file with holes only what is used counts."""
        if size > self._data.size:
            size = max(size, 2 * self._data.size)
            os.ftruncate(self._file, size)
            self._data = np.frombuffer(mmap.mmap(self._file, size), np.uint8)
        return self._data

    def begin(self) -> None:
        """Says that its contents are being written."""
        self.writes += 2 if self.writes % 2 else 1
        self._mark(-1)

    def end(self, version: int) -> None:
        """Says that they are complete."""
        self.writes += 1
        self.version = version
        self._mark(version)

    def close(self) -> None:
        """Lets go of it; readers that have it open keep it."""
        self._data = np.empty(0, np.uint8)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _mark(self, version: int) -> None:
        head = _FIELDS.pack(self.token, self.writes, version)
        self._data[: len(head)] = np.frombuffer(head, np.uint8)


class SharedMemorySender:
    """Copies each publication into shared memory. Linux only.

    Args:
        keep: Publications that stay readable. The memory of older ones is written again: its pages cost more
            than the copy. 1 is enough where engines copy what they fetch, 2 where they go on reading from it.
            None keeps all until they are retired.

    Raises:
        SyncError: This system has no anonymous shared memory.
    """

    def __init__(self, *, keep: int | None = 1) -> None:
        if not hasattr(os, "memfd_create") or not _BOOT.exists():
            raise SyncError(f"{KIND}: needs Linux (memfd_create and /proc); use the transport 'directory'")
        self._keep = keep
        self._memories: list[_Memory] = []

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Copies the tensors, and hashes them on the way. See `Sender.publish`."""
        memory = self._free()
        memory.begin()
        try:
            manifest = pack(tensors, memory, version=version, adapter=adapter, offset=_HEAD)
            text, at = manifest.encoded(), _HEAD + aligned(manifest.end)
            memory.at_least(at + len(text))[at : at + len(text)] = np.frombuffer(text, np.uint8)
        except MemoryError as error:
            raise SyncError(f"{KIND}: no memory for version {version}: {error}") from error
        memory.end(version)
        place = _Place(
            boot=_boot(),
            path=memory.path,
            token=memory.token,
            writes=memory.writes,
            manifest_at=at,
            manifest_size=len(text),
        )
        return Publication(
            version=version,
            checksum=manifest.checksum,
            size=manifest.size,
            transport=KIND,
            handle=place,
        )

    def retire(self, version: int) -> None:
        """Frees the memory of a version. See `Sender.retire`."""
        for memory in [each for each in self._memories if each.version == version]:
            self._memories.remove(memory)
            memory.close()

    def close(self) -> None:
        """Frees all memory. See `Sender.close`."""
        for memory in self._memories:
            memory.close()
        self._memories.clear()

    def _free(self) -> _Memory:
        """Memory to write to: the oldest if enough newer publications stay, otherwise some more."""
        if self._keep is not None and len(self._memories) >= self._keep:
            memory = self._memories.pop(0)
        else:
            memory = _Memory()
        memory.version = None
        self._memories.append(memory)
        return memory


class SharedMemoryReceiver:
    """Reads publications where they lie.

    Args:
        share: The engine may go on with the shared memory as its weights: all replicas of a host then hold
            them once. The sender has to keep 2.
    """

    def __init__(self, *, share: bool) -> None:
        self._share = share
        self._open: dict[bytes, np.ndarray] = {}

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns views of the shared memory. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        place = _place(publication)
        data = self._mapped(place, publication.version)
        self._require_untouched(place, data, publication.version)
        text = data[place.manifest_at : place.manifest_at + place.manifest_size].tobytes()
        return Manifest.decoded(text).arrival(data[_HEAD:], lent=self._share)

    def release(self, publication: Publication) -> None:
        """Checks that nobody wrote meanwhile. See `Receiver.release`."""
        place = _place(publication)
        data = self._open.get(place.token)
        if data is not None:
            self._require_untouched(place, data, publication.version)

    def close(self) -> None:
        """Lets go of the memory. See `Receiver.close`."""
        self._open.clear()

    def _mapped(self, place: _Place, version: int) -> np.ndarray:
        needed = place.manifest_at + place.manifest_size
        known = self._open.get(place.token)
        if known is not None and known.size >= needed:
            return known
        where = f"{KIND}: version {version} at {place.path}"
        if place.boot != _boot():
            raise SyncError(f"{where} was published on another host; use the transport 'object_store'")
        try:
            file = os.open(place.path, os.O_RDONLY)
        except OSError as error:
            why = "its process is gone, or of another user or container"
            raise SyncError(f"{where} cannot be opened ({error.strerror}): {why}") from error
        try:
            # A private mapping: of torch's tensors on it, none can write to what others read.
            mapping = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
        except (ValueError, OSError) as error:
            raise SyncError(f"{where} cannot be mapped: {error}") from error
        finally:
            os.close(file)
        data = np.frombuffer(mapping, np.uint8)
        if data.size < needed or _FIELDS.unpack(data[: _FIELDS.size].tobytes())[0] != place.token:
            raise SyncError(f"{where}: something else is there; its process has ended")
        # The memory that the sender has let go of is not kept open.
        self._open = {token: each for token, each in list(self._open.items())[-1:]}
        self._open[place.token] = data
        return data

    def _require_untouched(self, place: _Place, data: np.ndarray, version: int) -> None:
        _, writes, found = _FIELDS.unpack(data[: _FIELDS.size].tobytes())
        if (writes, found) != (place.writes, version):
            raise SyncError(
                f"{KIND}: version {version} was overwritten before every engine had it, "
                + (f"by version {found}" if found >= 0 else "by one that is being written")
            )


def _place(publication: Publication) -> _Place:
    if not isinstance(publication.handle, _Place):
        raise SyncError(f"{KIND}: the publication holds {type(publication.handle).__name__}")
    return publication.handle


def _boot() -> str:
    """What is the same for processes that may share memory."""
    return _BOOT.read_text(encoding="ascii").strip()
