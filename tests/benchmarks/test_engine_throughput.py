"""Tokens per second of the transformers engine and of `model.generate`, on equal lengths and on two traces.

    pytest -o addopts=--import-mode=importlib tests/benchmarks/test_engine_throughput.py -m "not recorded"

Both sides sample at temperature 1 from the same prompts (groups of 8), the engine with log-probs. `generate`
runs batch after batch, each to its longest completion; only the tokens that were asked for count.
"""

import asyncio
import itertools
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
import torch
from roll_launch.tasks.sort_letters import demonstration, letter_sequences
from roll_rollout import GenerateRequest, SamplingParams
from roll_rollout.transformers_engine import TransformersEngine
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

GROUP = 8


def tiny_model() -> PreTrainedModel:
    """397k parameters, vocabulary 25."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=25,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            intermediate_size=384,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
        )
    )


def smol_model() -> PreTrainedModel:
    """135M parameters in the shape of SmolLM2-135M."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            intermediate_size=1536,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


MODELS = {"tiny": (tiny_model, 8, 64), "smol": (smol_model, 50, 16)}
"""How to make the model, tokens of a prompt, and tokens of a completion where all are equal."""


def lengths_of(kind: str, count: int, equal: int) -> np.ndarray:
    """All equal, those of the quickstart's demonstrations, or lognormal (median 32, 99th percentile 256)."""
    if kind == "equal":
        return np.full(count, equal)
    if kind == "quickstart":
        source = Random(0)
        prompts = itertools.islice(letter_sequences(source, heldout=False), count)
        return np.array([min(80, len(demonstration(source, letters)) + 1) for letters in prompts])
    sigma = np.log(256 / 32) / 2.326
    draws = np.random.default_rng(0).standard_normal(count)
    return np.clip(32 * np.exp(sigma * draws), 1, 600).astype(int)


def prompts_of(count: int, length: int, vocabulary: int) -> np.ndarray:
    groups = np.random.default_rng(1).integers(3, vocabulary, (-(-count // GROUP), length))
    return np.repeat(groups, GROUP, axis=0)[:count]


@pytest.fixture(params=[1, 2], ids=lambda count: f"{count}-threads")
def threads(request) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run_generate(model: PreTrainedModel, prompts: np.ndarray, lengths: np.ndarray, batch: int) -> None:
    for start in range(0, len(prompts), batch):
        ids = torch.from_numpy(prompts[start : start + batch])
        longest = int(lengths[start : start + batch].max())
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=longest,
            min_new_tokens=longest,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
        )


async def run_engine(engine: TransformersEngine, prompts: np.ndarray, lengths: np.ndarray) -> None:
    requests = [
        GenerateRequest(
            id=str(index), prompt_ids=prompt, seed=index, sampling=SamplingParams(max_tokens=int(length))
        )
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    await asyncio.gather(*[engine.generate(request) for request in requests])


SCENARIOS = [
    *itertools.product(["tiny"], ["equal"], [1, 8, 32, 128]),
    *itertools.product(["tiny"], ["quickstart", "trace"], [1, 8, 32, 64, 128]),
    *(
        pytest.param("smol", kind, batch, marks=pytest.mark.recorded)
        for kind, batch in [
            ("equal", 1),
            ("equal", 8),
            ("equal", 32),
            ("equal", 128),
            ("trace", 32),
            ("quickstart", 32),
            ("quickstart", 64),
        ]
    ),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("side", ["generate", "engine"])
@pytest.mark.parametrize(("model_name", "kind", "batch"), SCENARIOS)
def test_tokens_per_second(benchmark, side, model_name, kind, batch, threads):
    torch.manual_seed(0)
    make_model, prompt_length, equal = MODELS[model_name]
    model = make_model().eval()
    count = 4 * batch if model_name == "tiny" and kind != "equal" else batch
    lengths = lengths_of(kind, count, equal)
    prompts = prompts_of(count, prompt_length, model.config.vocab_size)
    rounds = 5 if model_name == "tiny" else 1
    if side == "generate":
        run_generate(model, prompts[:1], np.array([2]), 1)
        benchmark.pedantic(run_generate, (model, prompts, lengths, batch), rounds=rounds)
    else:
        engine = TransformersEngine(model, max_batch=batch)
        asyncio.run(run_engine(engine, prompts[:1], np.array([2])))
        benchmark.pedantic(lambda: asyncio.run(run_engine(engine, prompts, lengths)), rounds=rounds)
        asyncio.run(engine.close())
    benchmark.extra_info["tokens"] = int(lengths.sum())
    if benchmark.stats is not None:
        benchmark.extra_info["tokens_per_second"] = float(lengths.sum() / benchmark.stats.stats.min)
