"""Seconds of a training step on a 397k-parameter Qwen3: 128 completions of 16 prompts, and 64 demonstrations.

`pytest tests/benchmarks/test_learner_step.py --benchmark-only`; OMP_NUM_THREADS sets the threads.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from roll_learners import (
    LocalLearner,
    OptimizerSettings,
    Sample,
    make_algorithm,
    policy_step,
    supervised_step,
)
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 25


@pytest.fixture
def learner() -> LocalLearner:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    return LocalLearner(Qwen3ForCausalLM(config), optimizer=OptimizerSettings(learning_rate=4e-4))


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    """Prompts of 4 to 13 tokens; responses with median 10, 95th percentile 30 and at most 80 tokens."""
    rng = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, length).astype(np.int32)

    def make(groups: int, members: int) -> list[Sample]:
        samples = []
        for group in range(groups):
            prompt = ids(int(rng.integers(4, 14)))
            for _ in range(members):
                response = ids(int(np.clip(rng.lognormal(np.log(10), 0.67), 4, 80)))
                behavior = np.full(len(response), -np.log(VOCABULARY), np.float32)
                reward = float(rng.random() < 0.5)
                samples.append(Sample.from_completion(prompt, response, behavior, reward=reward, group=group))
        return samples

    return make


def test_policy_step(
    benchmark: BenchmarkFixture, learner: LocalLearner, make_samples: Callable[..., list[Sample]]
) -> None:
    samples, algorithm, rng = make_samples(16, 8), make_algorithm("dapo"), np.random.default_rng(0)
    done = benchmark(lambda: policy_step(learner, samples, algorithm, mini_batches=2, epochs=1, rng=rng))
    assert done.skipped == ()


def test_supervised_step(
    benchmark: BenchmarkFixture, learner: LocalLearner, make_samples: Callable[..., list[Sample]]
) -> None:
    samples = make_samples(64, 1)
    assert benchmark(lambda: supervised_step(learner, samples)).metrics["actor/nll"] > 0
