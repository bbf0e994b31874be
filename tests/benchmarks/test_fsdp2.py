"""What shards cost on a tiny model: an update on one rank against the local learner, and an export in GB/s.

`pytest tests/benchmarks/test_fsdp2.py --benchmark-only`; OMP_NUM_THREADS sets the threads.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pytest_benchmark.fixture import BenchmarkFixture
from roll_learners import LocalLearner, OptimizerSettings, Sample, supervised_step
from roll_learners.fsdp2 import Fsdp2Learner, Sharding, full_weights, save_checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

SETTINGS = OptimizerSettings(learning_rate=4e-4)
VOCABULARY = 25


def make_model(hidden: int = 128) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def make_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, VOCABULARY, rng.integers(10, 40)).astype(np.int32) for _ in range(64)]
    return [Sample.from_completion(row[:5], row[5:]) for row in rows]


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_local_step(benchmark: BenchmarkFixture) -> None:
    learner, samples = LocalLearner(make_model(), optimizer=SETTINGS), make_samples()
    assert benchmark(lambda: supervised_step(learner, samples)).updates == 1


@pytest.mark.usefixtures("one_rank")
def test_fsdp2_step(benchmark: BenchmarkFixture) -> None:
    learner = Fsdp2Learner(make_model(), sharding=Sharding(), optimizer=SETTINGS)
    samples = make_samples()
    assert benchmark(lambda: supervised_step(learner, samples)).updates == 1


@pytest.mark.usefixtures("one_rank")
def test_export(benchmark: BenchmarkFixture) -> None:
    learner = Fsdp2Learner(make_model(1024), sharding=Sharding(), optimizer=SETTINGS)
    exported = benchmark(lambda: sum(tensor.nbytes for _, tensor in learner.export_weights()))
    if benchmark.stats is not None:  # timing is not disabled
        benchmark.extra_info["GB/s"] = exported / 1e9 / benchmark.stats["mean"]


@pytest.mark.usefixtures("one_rank")
def test_save_and_read_whole(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    learner = Fsdp2Learner(make_model(1024), sharding=Sharding(), optimizer=SETTINGS)

    def convert() -> int:
        save_checkpoint(learner, tmp_path / "shards")
        return sum(tensor.nbytes for tensor in full_weights(tmp_path / "shards").values())

    moved = benchmark(convert)
    if benchmark.stats is not None:  # timing is not disabled
        benchmark.extra_info["GB/s"] = moved / 1e9 / benchmark.stats["mean"]
