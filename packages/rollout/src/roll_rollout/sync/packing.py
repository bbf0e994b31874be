"""Tensors one after the other in a region of memory that grows: how senders hold what they publish."""

import mmap
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from roll_rollout.errors import WeightMismatch
from roll_rollout.sync.manifest import Manifest, TensorRecord, aligned
from roll_rollout.sync.transport import AdapterHeader
from roll_rollout.weight_digest import Digester
from roll_rollout.weights import TensorBytes, WeightBucket

FIRST_BYTES = 1 << 24


class Region(Protocol):
    """Memory that keeps its contents when it grows."""

    def at_least(self, size: int) -> np.ndarray:
        """Returns the region as uint8[`size` or more]; earlier views may no longer be part of it."""
        ...


class AnonymousRegion:
    """A region of this process alone. Its pages stay with it, because new ones cost more than a copy does."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)

    def at_least(self, size: int) -> np.ndarray:
        """Returns the region; see `Region`."""
        if size > self._data.size:
            grown = np.frombuffer(mmap.mmap(-1, max(size, 2 * self._data.size, FIRST_BYTES)), np.uint8)
            grown[: self._data.size] = self._data
            self._data = grown
        return self._data


def pack(
    tensors: Iterable[TensorBytes],
    region: Region,
    *,
    version: int,
    adapter: AdapterHeader | None = None,
    offset: int = 0,
) -> Manifest:
    """Copies tensors into a region, one at a time, and returns what lies where.

    Args:
        tensors: Of the publication.
        region: Written from `offset` on.
        version: Policy version.
        adapter: Where the tensors are a LoRA adapter.
        offset: Of the first tensor; the manifest counts from there.

    Raises:
        WeightMismatch: A tensor's bytes do not match its dtype and shape, or two have one name.
    """
    records: dict[str, TensorRecord] = {}
    end = 0
    with Digester() as digester:
        for name, dtype, shape, payload in tensors:
            check_tensor(name, dtype, shape, payload, records)
            start = aligned(end)
            end = start + payload.size
            target = region.at_least(offset + end)[offset + start : offset + end]
            digest = digester.copy(name, dtype, shape, payload, target)
            records[name] = TensorRecord(name=name, dtype=dtype, shape=shape, start=start, digest=digest)
        return Manifest(
            version=version, algorithm=digester.algorithm, records=tuple(records.values()), adapter=adapter
        )


def check_tensor(
    name: str, dtype: str, shape: tuple[int, ...], payload: np.ndarray, earlier: Iterable[str]
) -> None:
    """Returns if a tensor can be published after the earlier ones.

    Raises:
        WeightMismatch: Its bytes do not match its dtype and shape, or an earlier one has its name.
    """
    WeightBucket(names=(name,), dtypes=(dtype,), shapes=(shape,), payload=payload)
    if name in earlier:
        raise WeightMismatch(f"tensor {name!r} is duplicated")
