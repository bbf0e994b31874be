"""Bytes a second from a learner's tensors into an engine's, checksums at both ends, beside one memory copy.

`pytest -n 0 tests/benchmarks/test_weight_sync.py --benchmark-only` (add `-m "slow or not slow"` for the transports
that cross processes); the numbers are in docs/weight_sync.md. ROLL_SYNC_MB sets the size of the weights.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
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
from roll_rollout.torch_weights import tensor_bytes
from roll_rollout.transformers_engine.model_weights import ModelWeights
from roll_rollout.weights import WeightUpdate

MB = int(os.environ.get("ROLL_SYNC_MB", "512"))
LAYERS = 30
ROUNDS = 5


class Layers(torch.nn.Module):
    """As many bytes of float32 weights as are to be synced."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        wide = MB * (1 << 20) // LAYERS // 4
        self.layers = torch.nn.ParameterList(torch.zeros(wide) for _ in range(LAYERS))


def _ends(kind: str, directory: Path) -> tuple[Sender, Callable[[], Receiver]]:
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


def _load(weights: ModelWeights, receiver: Receiver, publication: Any) -> str:
    arrival = receiver.fetch(publication, deadline_s=60)
    assert isinstance(arrival, WeightUpdate)
    checksum = weights.load(arrival)
    receiver.release(publication)
    return checksum


def _replica(kind: str, directory: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    _, make = _ends(kind, directory / "unused")
    receiver, weights = make(), ModelWeights(Layers())  # type: ignore[arg-type]  # as much of a model as is used
    while (publication := pipe.recv()) is not None:
        pipe.send(_load(weights, receiver, publication))


@pytest.fixture
def learner() -> Layers:
    made = Layers()
    with torch.no_grad():
        for each in made.layers:
            each.uniform_()
    return made


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Callable[[str], Connection]]:
    context = multiprocessing.get_context("spawn")
    started: list[Any] = []

    def start(kind: str) -> Connection:
        here, there = context.Pipe()
        process = context.Process(target=_replica, args=(kind, tmp_path, there), daemon=True)
        process.start()
        started.append(process)
        return here

    yield start
    for process in started:
        process.kill()
        process.join()


def _changed(learner: Layers, share: float) -> None:
    """As an optimizer step may do."""
    with torch.no_grad():
        for each in learner.layers:
            if share == 1:
                each.mul_(1.0001)
            else:
                each[:: int(1 / share)] += 1


def _report(benchmark: BenchmarkFixture, copied: float) -> None:
    seconds = benchmark.stats.stats.median
    benchmark.extra_info["GB/s"] = round(MB * 1.048576e-3 / seconds, 2)
    benchmark.extra_info["of one memory copy"] = round(copied / seconds, 2)


def _copy_seconds() -> float:
    import time

    source, target = np.ones(MB << 20, np.uint8), np.zeros(MB << 20, np.uint8)
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["in_process, shared", "in_process, copied"])
def test_within_a_process(benchmark: BenchmarkFixture, learner: Layers, kind: str, tmp_path: Path) -> None:
    copied = _copy_seconds()
    sender, make = _ends(kind, tmp_path)
    receiver, weights = make(), ModelWeights(Layers())  # type: ignore[arg-type]  # as much of a model as is used

    def sync() -> None:
        publication = sender.publish(tensor_bytes(learner.named_parameters()), version=1)
        assert _load(weights, receiver, publication) == publication.checksum

    benchmark.pedantic(sync, setup=lambda: _changed(learner, 1), rounds=ROUNDS, warmup_rounds=1)
    _report(benchmark, copied)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        "shared_memory, shared",
        "shared_memory, copied",
        "directory",
        "delta over shared_memory, 1 % changed",
        "broadcast, gloo",
    ],
)
def test_across_processes(
    benchmark: BenchmarkFixture,
    learner: Layers,
    replica: Callable[[str], Connection],
    kind: str,
    tmp_path: Path,
) -> None:
    pipe, copied = replica(kind), _copy_seconds()
    sender, _ = _ends(kind, tmp_path / "weights")

    def sync() -> None:
        publication = sender.publish(tensor_bytes(learner.named_parameters()), version=versions.pop())
        pipe.send(publication)
        assert pipe.recv() == publication.checksum

    versions = list(range(20, 0, -1))
    share = 0.01 if "1 %" in kind else 1
    benchmark.pedantic(sync, setup=lambda: _changed(learner, share), rounds=ROUNDS, warmup_rounds=2)
    _report(benchmark, copied)
    sender.close()
