"""A small random Qwen3, a critic half its width, and samples for them."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from roll_learners import LocalCritic, LocalLearner, OptimizerSettings, Sample
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification

VOCABULARY = 25


@pytest.fixture
def make_model() -> Callable[..., Qwen3ForCausalLM]:
    def make(*, dtype: torch.dtype = torch.float64, seed: int = 0, tied: bool = True) -> Qwen3ForCausalLM:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=tied,
            initializer_range=0.3,
        )
        return Qwen3ForCausalLM(config).to(dtype)

    return make


@pytest.fixture
def make_learner(make_model: Callable[..., Qwen3ForCausalLM]) -> Callable[..., LocalLearner]:
    def make(
        *,
        dtype: torch.dtype = torch.float64,
        micro_batch_tokens: int = 4096,
        temperature: float = 1.0,
        model: Qwen3ForCausalLM | None = None,
        **settings: object,
    ) -> LocalLearner:
        optimizer = OptimizerSettings(**({"learning_rate": 1e-2} | settings))
        return LocalLearner(
            model or make_model(dtype=dtype),
            optimizer=optimizer,
            micro_batch_tokens=micro_batch_tokens,
            temperature=temperature,
        )

    return make


@pytest.fixture
def make_critic() -> Callable[..., LocalCritic]:
    def make(
        *,
        dtype: torch.dtype = torch.float64,
        micro_batch_tokens: int = 4096,
        seed: int = 0,
        **settings: object,
    ) -> LocalCritic:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            num_labels=1,
            initializer_range=0.3,
        )
        optimizer = OptimizerSettings(**({"learning_rate": 1e-2} | settings))
        model = Qwen3ForTokenClassification(config).to(dtype)
        return LocalCritic(model, optimizer=optimizer, micro_batch_tokens=micro_batch_tokens)

    return make


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    def make(
        rewards: Sequence[float] = (1, 0, 0, 1, 0.5, 1, 0, 0),
        *,
        group_size: int = 4,
        seed: int = 0,
        behavior: bool = True,
    ) -> list[Sample]:
        rng = np.random.default_rng(seed)
        samples = []
        for i, reward in enumerate(rewards):
            prompt, response = rng.integers(1, 6), rng.integers(1, 12)
            samples.append(
                Sample.from_completion(
                    rng.integers(0, VOCABULARY, prompt).astype(np.int32),
                    rng.integers(0, VOCABULARY, response).astype(np.int32),
                    rng.uniform(-4, -1, response).astype(np.float32) if behavior else None,
                    reward=reward,
                    group=i // group_size,
                )
            )
        return samples

    return make
