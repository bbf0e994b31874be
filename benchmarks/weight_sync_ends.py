"""The two ends of each transport, for `tests/benchmarks/test_weight_sync.py`."""

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from roll_rollout.sync import (
    BroadcastReceiver,
    BroadcastSender,
    DeltaReceiver,
    DeltaSender,
    DirectoryReceiver,
    DirectorySender,
    InProcessReceiver,
    InProcessSender,
    Receiver,
    Sender,
    SharedMemoryReceiver,
    SharedMemorySender,
)
from roll_rollout.transformers_engine.model_weights import ModelWeights
from roll_rollout.weights import WeightUpdate

MB = int(os.environ.get("ROLL_SYNC_MB", "512"))
"""MiB of the weights."""
LAYERS = 30


class Layers(torch.nn.Module):
    """As many bytes of float32 weights as are to be synced."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        wide = MB * (1 << 20) // LAYERS // 4
        self.layers = torch.nn.ParameterList(torch.zeros(wide) for _ in range(LAYERS))


def ends(kind: str, directory: Path) -> tuple[Sender, Callable[[], Receiver]]:
    """A transport's sender, and what makes its receiver."""
    match kind:
        case "in_process, shared":
            return InProcessSender(share=True), InProcessReceiver
        case "in_process, copied":
            return InProcessSender(share=False), InProcessReceiver
        case "shared_memory, shared":
            return SharedMemorySender(keep=2), lambda: SharedMemoryReceiver(share=True)
        case "shared_memory, copied":
            return SharedMemorySender(keep=1), lambda: SharedMemoryReceiver(share=False)
        case "directory":
            return DirectorySender(directory, keep=1), DirectoryReceiver
        case "delta over shared_memory, 1 % changed":
            sender = DeltaSender(SharedMemorySender(keep=None), full_every=100)
            return sender, lambda: DeltaReceiver(SharedMemoryReceiver(share=False))
        case _:
            broadcast = BroadcastSender(receivers=["a"], address="127.0.0.1")
            return broadcast, lambda: BroadcastReceiver("a")


def load_into(weights: ModelWeights, receiver: Receiver, publication: Any) -> str:
    """Fetches and loads a publication as an engine does; returns the checksum."""
    arrival = receiver.fetch(publication, deadline_s=60)
    assert isinstance(arrival, WeightUpdate)
    checksum = weights.load(arrival)
    receiver.release(publication)
    return checksum


def replica(kind: str, directory: Path, pipe: Connection) -> None:
    """What the engine's process does: loads what it is told of, and says what that took."""
    torch.set_num_threads(1)
    _, make = ends(kind, directory / "unused")
    receiver, weights = make(), ModelWeights(Layers())  # type: ignore[arg-type]  # as much of a model as is used
    while (publication := pipe.recv()) is not None:
        before = time.process_time()
        checksum = load_into(weights, receiver, publication)
        pipe.send((checksum, time.process_time() - before))
