"""The lean step gives the logits of the model's own step, and is given up where it would not."""

import asyncio
import logging

import numpy as np
import pytest
import torch
from roll_rollout.transformers_engine import TransformersEngine
from roll_rollout.transformers_engine.attention import use_grouped_attention
from roll_rollout.transformers_engine.decode_step import DecodeStep
from roll_rollout.transformers_engine.lean_decode import LeanDecode, lean_decode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
    "initializer_range": 0.15,
}  # fmt: skip


def models():
    torch.manual_seed(0)
    yield "llama", LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
    yield "llama3 rope", LlamaForCausalLM(
        LlamaConfig(
            **SHAPE,
            attention_bias=True,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        )
    )  # fmt: skip
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    yield "mistral window", MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=12, head_dim=8))


async def drawn(engine: TransformersEngine, make_request):
    requests = [
        make_request([3 + seed % 5, 4, 9][: 1 + seed % 3], seed=seed, max_tokens=4 + 9 * (seed % 6))
        for seed in range(14)
    ]
    completions = await asyncio.gather(*[engine.generate(request) for request in requests])
    await engine.close()
    return completions


@pytest.mark.parametrize(
    ("name", "model"), list(models()), ids=lambda each: each if isinstance(each, str) else ""
)
async def test_known_architectures_draw_what_their_forward_says(name, model, make_request, score):
    engine = TransformersEngine(model, max_batch=6)
    step = engine._core._step
    assert isinstance(step._lean, LeanDecode)
    for completion in await drawn(engine, make_request):
        expected = score(model, completion.prompt_ids, completion.token_ids, 1.0)
        assert np.abs(completion.logprobs - expected).max() < 2e-5
    assert step._trusted


async def test_bfloat16_keeps_to_its_forward(model_maker, make_request, score):
    model = model_maker(0, torch.bfloat16)
    engine = TransformersEngine(model)
    for completion in await drawn(engine, make_request):
        expected = score(model, completion.prompt_ids, completion.token_ids, 1.0)
        assert np.abs(completion.logprobs - expected).max() < 0.1
    assert engine._core._step._trusted


def test_other_architectures_and_angles_are_left_to_their_forward():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=32, n_positions=64))
    assert lean_decode(gpt2) is None
    dynamic = LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    )
    use_grouped_attention(dynamic)
    assert lean_decode(dynamic) is None
    eager = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager"))
    assert lean_decode(eager) is None


async def test_step_that_disagrees_is_given_up_and_harms_nothing(
    tiny_model, make_request, score, monkeypatch, caplog
):
    honest = LeanDecode.__call__
    monkeypatch.setattr(LeanDecode, "__call__", lambda self, *rest: honest(self, *rest) * 1.5)
    engine = TransformersEngine(tiny_model)
    with caplog.at_level(logging.WARNING):
        completions = await drawn(engine, make_request)
    for completion in completions:
        expected = score(tiny_model, completion.prompt_ids, completion.token_ids, 1.0)
        assert np.abs(completion.logprobs - expected).max() < 2e-5
    assert "the lean step of Qwen3ForCausalLM differs" in caplog.text
    assert engine._core._step._lean is None


def test_model_with_hooks_is_left_to_its_forward(tiny_model):
    use_grouped_attention(tiny_model)
    assert lean_decode(tiny_model) is not None
    hook = tiny_model.model.layers[0].mlp.register_forward_hook(lambda *rest: None)
    assert lean_decode(tiny_model) is None
    hook.remove()
    assert lean_decode(tiny_model) is not None


def test_adapters_are_left_to_the_models_own_forward(tiny_model, monkeypatch):
    use_grouped_attention(tiny_model)
    step = DecodeStep(tiny_model)
    asked = []
    monkeypatch.setattr(DecodeStep, "_forward", lambda self, *rest: asked.append(rest))
    step.logits(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), None, plain=True)
    assert len(asked) == 1
