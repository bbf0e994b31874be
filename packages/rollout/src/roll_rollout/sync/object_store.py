"""Weights through an object store such as Ray's: buckets that the store keeps and brings to any host."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roll_rollout.errors import WeightMismatch
from roll_rollout.sync.manifest import Manifest, TensorRecord, aligned
from roll_rollout.sync.packing import check_tensor
from roll_rollout.sync.transport import AdapterHeader, Arrival, Publication, SyncError, check_publication
from roll_rollout.weight_digest import Digester
from roll_rollout.weights import TensorBytes

KIND = "object_store"
BUCKET_BYTES = 1 << 28


class ObjectStore(Protocol):
    """Keeps immutable bytes for whoever has a reference to them."""

    def put(self, data: np.ndarray) -> object:
        """Returns a reference to a copy of uint8[N]."""
        ...

    def get(self, references: Sequence[object], *, deadline_s: float) -> list[np.ndarray]:
        """Returns what the references stand for, uint8[N] each, in order.

        Raises:
            TimeoutError: It did not come in time.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stored:
    buckets: tuple[object, ...]
    bucket_bytes: int
    manifest: bytes


class Buckets:
    """Tensors, one after the other, cut into buckets of equal size; iterate once, then ask for `manifest`.

    One bucket is in memory at a time, besides the tensor that is being cut. A tensor may begin in one bucket
    and end in another, several buckets later if it is large.

    Args:
        tensors: Of the publication.
        bucket_bytes: Of every bucket but the last, at least 1.
        version: Policy version.
        adapter: Where the tensors are a LoRA adapter.

    Raises:
        WeightMismatch: On iteration: a tensor's bytes do not match its dtype and shape, or two have one name.
    """

    def __init__(
        self,
        tensors: Iterable[TensorBytes],
        *,
        bucket_bytes: int,
        version: int,
        adapter: AdapterHeader | None = None,
    ) -> None:
        if bucket_bytes < 1:
            raise WeightMismatch(f"bucket_bytes: got {bucket_bytes}, allowed is 1 or more")
        self._tensors = tensors
        self._bucket_bytes = bucket_bytes
        self._version = version
        self._adapter = adapter
        self._records: dict[str, TensorRecord] = {}
        self._algorithm = ""

    @property
    def manifest(self) -> Manifest:
        """What the buckets contain, once all have been taken."""
        return Manifest(
            version=self._version,
            algorithm=self._algorithm,
            records=tuple(self._records.values()),
            adapter=self._adapter,
        )

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields uint8[N]; the same memory each time."""
        bucket, end = np.zeros(self._bucket_bytes, np.uint8), 0
        with Digester() as digester:
            self._algorithm = digester.algorithm
            for name, dtype, shape, payload in self._tensors:
                check_tensor(name, dtype, shape, payload, self._records)
                digest = digester.digest(name, dtype, shape, payload)
                start = aligned(end)
                self._records[name] = TensorRecord(
                    name=name, dtype=dtype, shape=shape, start=start, digest=digest
                )
                for place, piece in self._pieces(end, start, payload):
                    at = place % self._bucket_bytes
                    bucket[at : at + piece.size] = piece
                    if at + piece.size == self._bucket_bytes:
                        yield bucket
                end = start + payload.size
        if end % self._bucket_bytes:
            yield bucket[: end % self._bucket_bytes]

    def _pieces(self, end: int, start: int, payload: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The padding before a tensor and its bytes, cut where buckets end, each with its offset."""
        for offset, data in ((end, np.zeros(start - end, np.uint8)), (start, payload)):
            taken = 0
            while taken < data.size:
                room = self._bucket_bytes - (offset + taken) % self._bucket_bytes
                yield offset + taken, data[taken : taken + room]
                taken += room


def joined(manifest: Manifest, buckets: Sequence[np.ndarray], bucket_bytes: int) -> Arrival:
    """Returns the update in buckets that were cut from it: views, and copies of tensors that were cut.

    Raises:
        WeightMismatch: A bucket is missing, too many or of another size; says which.
    """
    where = f"version {manifest.version}"
    needed = -(-manifest.end // bucket_bytes)
    if len(buckets) != needed:
        raise WeightMismatch(f"{where}: {len(buckets)} buckets arrived of {needed}")
    for index, bucket in enumerate(buckets):
        size = min(bucket_bytes, manifest.end - index * bucket_bytes)
        if bucket.size != size:
            raise WeightMismatch(f"{where}: bucket {index} of {needed} has {bucket.size} bytes, not {size}")
    payloads = []
    for record in manifest.records:
        pieces, at, end = [], record.start, record.start + record.size
        while at < end:
            index, inside = divmod(at, bucket_bytes)
            piece = buckets[index][inside : inside + end - at]
            pieces.append(piece)
            at += piece.size
        payloads.append(pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, np.uint8)]))
    return manifest.arrival_of(payloads)


class ObjectStoreSender:
    """Puts each publication into a store.

    Args:
        store: Its buckets live as long as someone has their references.
        bucket_bytes: Of one object; the learner's process holds one bucket at a time.
        keep: Publications that stay; None keeps all until they are retired.
    """

    def __init__(self, store: ObjectStore, *, bucket_bytes: int = BUCKET_BYTES, keep: int | None = 1) -> None:
        self._store = store
        self._bucket_bytes = bucket_bytes
        self._keep = keep
        self._held: dict[int, tuple[object, ...]] = {}

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Puts bucket after bucket. See `Sender.publish`."""
        # Let go of first, so that two copies of the weights are held no longer than somebody reads them.
        while self._keep is not None and len(self._held) >= self._keep:
            self._held.pop(next(iter(self._held)))
        buckets = Buckets(tensors, bucket_bytes=self._bucket_bytes, version=version, adapter=adapter)
        references = tuple(self._store.put(bucket) for bucket in buckets)
        self._held[version] = references
        manifest = buckets.manifest
        return Publication(
            version=version,
            checksum=manifest.checksum,
            size=manifest.size,
            transport=KIND,
            handle=_Stored(buckets=references, bucket_bytes=self._bucket_bytes, manifest=manifest.encoded()),
        )

    def retire(self, version: int) -> None:
        """Lets go of the references of a version. See `Sender.retire`."""
        self._held.pop(version, None)

    def close(self) -> None:
        """Lets go of all references. See `Sender.close`."""
        self._held.clear()


class ObjectStoreReceiver:
    """Gets publications from the store.

    Args:
        store: The same as the sender's.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns views of the store's buckets. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        stored = publication.handle
        if not isinstance(stored, _Stored):
            raise SyncError(f"{KIND}: the publication holds {type(stored).__name__}")
        manifest = Manifest.decoded(stored.manifest)
        try:
            buckets = self._store.get(stored.buckets, deadline_s=deadline_s)
        except TimeoutError as error:
            count = len(stored.buckets)
            raise SyncError(
                f"{KIND}: version {publication.version}: its {count} buckets did not come within "
                f"{deadline_s:g} s"
            ) from error
        return joined(manifest, buckets, stored.bucket_bytes)

    def release(self, publication: Publication) -> None:
        """Holds nothing of its own. See `Receiver.release`."""

    def close(self) -> None:
        """Holds nothing of its own. See `Receiver.close`."""
