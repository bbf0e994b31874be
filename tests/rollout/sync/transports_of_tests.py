"""Transports as their users make them: a sender, and receivers of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from roll_rollout import WeightUpdate
from roll_rollout.sync import (
    Arrival,
    BroadcastReceiver,
    BroadcastSender,
    DeltaReceiver,
    DeltaSender,
    DirectoryReceiver,
    DirectorySender,
    InProcessReceiver,
    InProcessSender,
    ObjectStoreReceiver,
    ObjectStoreSender,
    Publication,
    Receiver,
    Sender,
    SharedMemoryReceiver,
    SharedMemorySender,
)
from roll_rollout.weights import TensorBytes, checked_checksum

KINDS = (
    "in_process",
    "shared_memory",
    "object_store",
    "directory",
    "delta over shared_memory",
    "delta over object_store",
    "delta over directory",
    "broadcast",
)


class Shelf:
    """An object store in this process; `spoil` changes what is taken from it."""

    def __init__(self) -> None:
        self.kept: dict[int, np.ndarray] = {}
        self.spoil: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda found: found

    def put(self, data: np.ndarray) -> object:
        self.kept[len(self.kept)] = data.copy()
        return len(self.kept) - 1

    def get(self, references: Sequence[object], *, deadline_s: float) -> list[np.ndarray]:
        return self.spoil([self.kept[each] for each in references if isinstance(each, int)])


@dataclass
class Transport:
    sender: Sender
    receivers: list[Receiver]
    shelf: Shelf = field(default_factory=Shelf)

    def fetch(self, publication: Publication) -> list[Arrival]:
        """What every receiver gets, all at once: a broadcast needs them together."""
        with ThreadPoolExecutor(len(self.receivers)) as pool:
            asked = [pool.submit(each.fetch, publication, deadline_s=20) for each in self.receivers]
            return [each.result() for each in asked]


def tensors(seed: int = 0, *, large: int = 5000) -> list[TensorBytes]:
    """Tensors of many dtypes and sizes, one of `large` floats."""
    rng = np.random.default_rng(seed)

    def made(name: str, dtype: str, width: int, shape: tuple[int, ...]) -> TensorBytes:
        size = width * int(np.prod(shape, dtype=int))
        return name, dtype, shape, rng.integers(0, 256, size, dtype=np.uint8)

    return [
        made("norm.weight", "float32", 4, (7,)),
        made("embed.weight", "bfloat16", 2, (large, 2)),
        made("scale", "float32", 4, ()),
        made("nothing", "float32", 4, (0, 3)),
        made("packed", "int8", 1, (3, 5)),
        made("head.weight", "float64", 8, (11, 3)),
    ]


def found(arrival: Arrival) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (dtype, shape, payload.tobytes())
        for bucket in arrival.buckets
        for name, dtype, shape, payload in bucket.tensors()
    }


def whole(arrival: Arrival) -> WeightUpdate:
    assert isinstance(arrival, WeightUpdate)
    return arrival


def make_transport(kind: str, directory: Path, names: Sequence[str] = ("a", "b")) -> Transport:
    shelf, count = Shelf(), len(names)
    match kind.removeprefix("delta over "):
        case "in_process":
            return Transport(InProcessSender(share=False), [InProcessReceiver() for _ in names])
        case "broadcast":
            sender = BroadcastSender(
                receivers=names, address="127.0.0.1", bucket_bytes=4096, join_s=10, session_s=20
            )
            return Transport(sender, [BroadcastReceiver(name) for name in names])
        case "shared_memory":
            inner = SharedMemorySender(keep=None if kind.startswith("delta") else 1)
            receivers = [SharedMemoryReceiver(share=False) for _ in range(count)]
        case "object_store":
            inner = ObjectStoreSender(shelf, bucket_bytes=4096, keep=None)
            receivers = [ObjectStoreReceiver(shelf) for _ in range(count)]
        case _:
            inner = DirectorySender(directory / "weights", file_bytes=4096, keep=None)
            receivers = [DirectoryReceiver() for _ in range(count)]
    if kind.startswith("delta"):
        return Transport(DeltaSender(inner, full_every=4), [DeltaReceiver(each) for each in receivers], shelf)
    return Transport(inner, list(receivers), shelf)


def broadcast_replica(name: str, pipe: Connection) -> None:
    """What a replica's process does: says which checksum each publication has that it is told of."""
    receiver = BroadcastReceiver(name)
    while True:
        published = pipe.recv()
        pipe.send(checked_checksum(whole(receiver.fetch(published, deadline_s=60))))
