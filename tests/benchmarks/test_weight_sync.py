"""Bytes a second from a learner's tensors into an engine's, checksums at both ends, beside one memory copy.

`pytest -n 0 tests/benchmarks/test_weight_sync.py --benchmark-only -m "slow or not slow"`; the numbers are in
docs/weight_sync.md. ROLL_SYNC_MB sets the size of the weights. Beside the wall clock stands the processor
time of both processes, which a busy machine changes less.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from roll_rollout.torch_weights import tensor_bytes
from roll_rollout.transformers_engine.model_weights import ModelWeights
from weight_sync_ends import MB, Layers, ends, load_into
from weight_sync_ends import replica as replica_process

ROUNDS = 5


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
        process = context.Process(target=replica_process, args=(kind, tmp_path, there), daemon=True)
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


def _report(benchmark: BenchmarkFixture, copy: tuple[float, float], processor: list[float]) -> None:
    if benchmark.stats is None:  # timing is disabled
        return
    wall, busy = benchmark.stats.stats.median, float(np.median(processor[-ROUNDS:]))
    benchmark.extra_info["GB/s"] = round(MB * 1.048576e-3 / wall, 2)
    benchmark.extra_info["of one copy, wall"] = round(copy[0] / wall, 2)
    benchmark.extra_info["of one copy, processor"] = round(copy[1] / busy, 2)


def _copy_seconds() -> tuple[float, float]:
    """Wall and processor seconds of one copy of as many bytes."""
    source, target = np.ones(MB << 20, np.uint8), np.zeros(MB << 20, np.uint8)
    times = []
    for _ in range(ROUNDS + 1):
        wall, busy = time.perf_counter(), time.process_time()
        np.copyto(target, source)
        times.append((time.perf_counter() - wall, time.process_time() - busy))
    walls, busies = zip(*times[1:], strict=True)
    return float(np.median(walls)), float(np.median(busies))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["in_process, shared", "in_process, copied"])
def test_within_a_process(benchmark: BenchmarkFixture, learner: Layers, kind: str, tmp_path: Path) -> None:
    copy = _copy_seconds()
    sender, make = ends(kind, tmp_path)
    receiver, weights = make(), ModelWeights(Layers())  # type: ignore[arg-type]  # as much of a model as is used

    processor: list[float] = []

    def sync() -> None:
        before = time.process_time()
        publication = sender.publish(tensor_bytes(learner.named_parameters()), version=1)
        assert load_into(weights, receiver, publication) == publication.checksum
        processor.append(time.process_time() - before)

    benchmark.pedantic(sync, setup=lambda: _changed(learner, 1), rounds=ROUNDS, warmup_rounds=1)
    _report(benchmark, copy, processor)


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
    pipe, copy = replica(kind), _copy_seconds()
    sender, _ = ends(kind, tmp_path / "weights")

    processor: list[float] = []

    def sync() -> None:
        before = time.process_time()
        publication = sender.publish(tensor_bytes(learner.named_parameters()), version=versions.pop())
        pipe.send(publication)
        checksum, theirs = pipe.recv()
        assert checksum == publication.checksum
        processor.append(time.process_time() - before + theirs)

    versions = list(range(20, 0, -1))
    share = 0.01 if "1 %" in kind else 1
    benchmark.pedantic(sync, setup=lambda: _changed(learner, share), rounds=ROUNDS, warmup_rounds=2)
    _report(benchmark, copy, processor)
    sender.close()
