"""Shapes read from configurations, and parameter counts that are exactly those of the real models."""

import pytest
import torch
from roll_hw import HwError, TransformerShape, parameter_count, transformer_shape
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES),
    "qwen2 tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3 default head": Qwen3Config(**SIZES),
    "qwen3 with bias, tied": Qwen3Config(**SIZES, attention_bias=True, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama with wide heads": LlamaConfig(**SIZES, head_dim=32),
    "mistral": MistralConfig(**SIZES),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **EXPERTS),
    "qwen3_moe with bias": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, attention_bias=True),
    "qwen3_moe with dense layers": Qwen3MoeConfig(**SIZES, **EXPERTS, mlp_only_layers=[0, 2]),
    "qwen3_moe with every second layer sparse": Qwen3MoeConfig(**SIZES, **EXPERTS, decoder_sparse_step=2),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameter_count_is_that_of_the_model(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert parameter_count(transformer_shape(config.to_dict())) == model.num_parameters()


def test_shape_of_a_published_config():
    shape = transformer_shape(
        {
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
        }
    )
    assert shape == TransformerShape(
        vocab_size=151936,
        hidden_size=896,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        tied_embeddings=True,
        qkv_bias=True,
    )
    assert parameter_count(shape) == 494_032_768


def config(model_type="llama", **changes):
    values = {"model_type": model_type, **SIZES, **changes}
    return {key: value for key, value in values.items() if value != "absent"}


@pytest.mark.parametrize("key", ["model_type", *(key for key in SIZES if key != "num_key_value_heads")])
def test_missing_key_is_named(key):
    with pytest.raises(HwError, match=rf"the key '{key}' is missing; there are "):
        transformer_shape(config(**{key: "absent"}) if key != "model_type" else SIZES)


@pytest.mark.parametrize("key", EXPERTS)
def test_missing_key_of_a_sparse_model_is_named(key):
    with pytest.raises(HwError, match=rf"the key '{key}' is missing"):
        transformer_shape(config("qwen3_moe", **{**EXPERTS, key: "absent"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', allowed is one of llama, mistral"),
        ({"hidden_size": "48"}, "hidden_size is '48', allowed is an integer >= 1"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 does not divide num_attention_heads 6"),
        ({"hidden_size": 50}, "num_attention_heads 6 does not divide hidden_size 50"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', allowed is true or false"),
        ({"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": 3}, "mlp_only_layers is 3"),
    ],
)
def test_impossible_value_is_named(changes, message):
    with pytest.raises(HwError, match=message):
        transformer_shape(config(**changes))
