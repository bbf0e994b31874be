"""What a publication contains: the tensors in order, where each lies, and the digest of each."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from roll_rollout.adapter import AdapterConfig, AdapterUpdate
from roll_rollout.errors import WeightMismatch
from roll_rollout.sync.transport import AdapterHeader, Arrival, SyncError, check_arrival
from roll_rollout.weight_digest import checksum_of
from roll_rollout.weights import DTYPE_BYTES, WeightBucket, WeightUpdate

ALIGNMENT = 64
"""Bytes of a cache line: at a multiple of it any dtype may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """One tensor: TensorRecord(name="norm.weight", dtype="float32", shape=(128,), start=64, digest=b"...").

    Attributes:
        name: Hugging Face or PEFT name.
        dtype: Key of `DTYPE_BYTES`.
        shape: Sizes.
        start: Offset of its first byte, a multiple of `ALIGNMENT`.
        digest: As in `roll_rollout.weight_digest`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    digest: bytes

    @property
    def size(self) -> int:
        """Its bytes."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The tensors of one publication.

    Attributes:
        version: Policy version.
        algorithm: Of the digests.
        records: The tensors, by offset.
        adapter: What the tensors are where they are not the weights.
    """

    version: int
    algorithm: str
    records: tuple[TensorRecord, ...]
    adapter: AdapterHeader | None = None

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(record.size for record in self.records)

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.records[-1].start + self.records[-1].size if self.records else 0

    @property
    def digests(self) -> dict[str, bytes]:
        """Digest of each tensor by name."""
        return {record.name: record.digest for record in self.records}

    @property
    def checksum(self) -> str:
        """As `weights_checksum` computes it from the tensors."""
        return checksum_of(self.digests, self.algorithm)

    def arrival(self, data: np.ndarray, *, lent: bool = False) -> Arrival:
        """Returns the update that lies in `data`, as views of it.

        Args:
            data: uint8[`end` or more].
            lent: Whether the engine may keep the views.

        Raises:
            WeightMismatch: `data` is too short, or the bytes of an adapter are not those that were published.
                Those of weights are compared when they are loaded.
        """
        if data.size < self.end:
            raise WeightMismatch(f"version {self.version}: {data.size} bytes arrived of {self.end}")
        views = [data[record.start : record.start + record.size] for record in self.records]
        return self.arrival_of(views, lent=lent)

    def arrival_of(self, payloads: list[np.ndarray], *, lent: bool = False) -> Arrival:
        """Returns the update whose tensors have these bytes; otherwise as `arrival`."""
        buckets = tuple(
            WeightBucket(
                names=(record.name,), dtypes=(record.dtype,), shapes=(record.shape,), payload=payload
            )
            for record, payload in zip(self.records, payloads, strict=True)
        )
        if self.adapter is None:
            return WeightUpdate(
                version=self.version,
                buckets=buckets,
                expected=self.digests,
                algorithm=self.algorithm,
                lent=lent,
            )
        name, config = self.adapter.name, self.adapter.config
        update = AdapterUpdate(name=name, version=self.version, config=config, buckets=buckets)
        check_arrival(update, self.digests, self.algorithm)
        return update

    def encoded(self) -> bytes:
        """Returns it as JSON."""
        adapter = self.adapter
        records = [
            [record.name, record.dtype, record.shape, record.start, record.digest.hex()]
            for record in self.records
        ]
        value = {
            "version": self.version,
            "algorithm": self.algorithm,
            "records": records,
            "adapter": None if adapter is None else {"name": adapter.name, "config": asdict(adapter.config)},
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, text: bytes) -> "Manifest":
        """Returns the manifest that `encoded` wrote.

        Raises:
            SyncError: The bytes are no manifest.
        """
        try:
            value = json.loads(text)
            records = tuple(_record(*entry) for entry in value["records"])
            return cls(
                version=int(value["version"]),
                algorithm=str(value["algorithm"]),
                records=records,
                adapter=_adapter(value["adapter"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SyncError(f"the manifest of a publication is damaged: {error!r}") from error


def aligned(offset: int) -> int:
    """Returns the first multiple of `ALIGNMENT` at or after an offset."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _record(name: str, dtype: str, shape: list[int], start: int, digest: str) -> TensorRecord:
    return TensorRecord(name=name, dtype=dtype, shape=tuple(shape), start=start, digest=bytes.fromhex(digest))


def _adapter(value: dict[str, Any] | None) -> AdapterHeader | None:
    if value is None:
        return None
    config = {**value["config"], "target_modules": tuple(value["config"]["target_modules"])}
    return AdapterHeader(name=str(value["name"]), config=AdapterConfig(**config))
