"""Estimates of memory against what torch really keeps."""

import pickle

import pytest
import torch
from roll_hw import (
    HwError,
    TransformerShape,
    estimate_rollout_memory,
    estimate_training_memory,
    parameter_count,
    transformer_shape,
)
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

GIB = 2**30
SHAPE = TransformerShape(
    vocab_size=1000,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    tied_embeddings=True,
)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
}


def train(**changes):
    return estimate_training_memory(SHAPE, **{"bytes_per_parameter": 4, "micro_batch_tokens": 256, **changes})


def in_bytes(estimate):
    return {part: size * GIB for part, size in estimate.parts.items()}


def test_adamw_in_fp32_takes_sixteen_bytes_a_parameter():
    parts = in_bytes(train())
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert states == pytest.approx(16 * parameter_count(SHAPE))


def test_adamw_in_bf16_takes_eight_bytes_a_parameter_and_sixteen_with_master_weights():
    parts = in_bytes(train(bytes_per_parameter=2))
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(
        8 * parameter_count(SHAPE)
    )
    parts = in_bytes(train(bytes_per_parameter=2, adam_bytes_per_parameter=12))
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(
        16 * parameter_count(SHAPE)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizer_state_is_what_torch_keeps(dtype):
    model = torch.nn.Linear(16, 16, bias=False, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 16, dtype=dtype)).sum().backward()
    optimizer.step()
    moments = [value for value in optimizer.state[model.weight].values() if value.dim() > 0]
    kept = sum(moment.numel() * moment.element_size() for moment in moments)
    assert kept == 2 * model.weight.element_size() * model.weight.numel()


def test_frozen_parameters_have_weights_only():
    parts = in_bytes(train(trainable_fraction=0.0))
    assert parts["weights"] > 0
    assert parts["gradients"] == parts["optimizer"] == 0


def test_logits_are_counted_for_the_tokens_that_exist_at_a_time():
    assert in_bytes(train())["logits"] == pytest.approx(256 * 1000 * 12)
    assert in_bytes(train(bytes_per_parameter=2, logits_tokens=10))["logits"] == pytest.approx(10 * 1000 * 10)


def saved_activation_bytes(config, dtype, tokens):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.model(torch.arange(tokens).reshape(2, -1) % config.vocab_size).last_hidden_state
    assert hidden.requires_grad
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SIZES),
        Qwen3Config(**SIZES, head_dim=32),
        LlamaConfig(**SIZES),
        Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=96),
    ],
    ids=lambda config: config.model_type,
)
def test_activations_are_within_a_tenth_of_what_autograd_saves(config, dtype):
    saved = saved_activation_bytes(config, dtype, tokens=128)
    estimate = estimate_training_memory(
        transformer_shape(config.to_dict()), bytes_per_parameter=dtype.itemsize, micro_batch_tokens=128
    )
    assert in_bytes(estimate)["activations"] == pytest.approx(saved, rel=0.1)


def test_rollout_holds_weights_cache_and_logits():
    estimate = estimate_rollout_memory(SHAPE, bytes_per_parameter=2, max_batch=8, max_context=100)
    assert in_bytes(estimate) == pytest.approx(
        {
            "weights": 2 * parameter_count(SHAPE),
            "kv_cache": 8 * 100 * (2 * 2 * 2 * 16) * 2,
            "logits": 8 * 1000 * 8,
        }
    )


def test_total_is_the_sum_of_the_parts_and_survives_pickling():
    estimate = pickle.loads(pickle.dumps(train()))
    assert estimate == train()
    assert estimate.total_gib == pytest.approx(sum(estimate.parts.values()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes_per_parameter": 0}, "bytes_per_parameter: got 0, allowed is >= 1"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens: got 0"),
        ({"logits_tokens": -1}, "logits_tokens: got -1, allowed is >= 0"),
        ({"trainable_fraction": 1.5}, "trainable_fraction: got 1.5, allowed is 0 to 1"),
    ],
)
def test_size_out_of_range_is_named(changes, message):
    with pytest.raises(HwError, match=message):
        train(**changes)


def test_empty_rollout_is_refused():
    with pytest.raises(HwError, match="max_batch: got 0"):
        estimate_rollout_memory(SHAPE, bytes_per_parameter=2, max_batch=0, max_context=1)
