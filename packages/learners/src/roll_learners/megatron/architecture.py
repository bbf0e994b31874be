"""Which Hugging Face models Megatron-Core can run here, read from a configuration. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll_learners.errors import LearnerError

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Values of `model_type` in config.json that there is a converter for; Qwen2.5 calls itself qwen2."""

LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron-Core has built in for Llama 3's scaling; the factor alone can be chosen."""

GATED_DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes of a decoder with rotary positions, RMS norms and gated SiLU.

    Attributes:
        family: One of `FAMILIES`.
        layers, hidden, heads, groups, head: As in config.json; `groups` are the key-value heads.
        intermediate: Width of dense feed-forward layers; 0 where all layers are mixtures.
        vocabulary: Tokens.
        tied: The head is the embedding.
        qkv_bias: Queries, keys and values have biases.
        qk_norm: Queries and keys are normalised, head by head.
        eps: Of the norms.
        rope_theta, rope_factor: Of rotary positions; the factor is Llama 3's scaling, None without.
        experts, experts_per_token, expert_intermediate: Of mixtures; 0 without.
        normalised_gates: The gates of a token's experts add up to 1.
        context: Longest row in tokens.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    groups: int
    head: int
    intermediate: int
    vocabulary: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    eps: float
    rope_theta: float
    rope_factor: float | None
    experts: int
    experts_per_token: int
    expert_intermediate: int
    normalised_gates: bool
    context: int


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json describes.

    Args:
        config: Its content, or `model.config.to_dict()`.

    Raises:
        LearnerError: There is no converter for the family, or it has a part that is not converted.
    """
    family = str(config.get("model_type"))
    if family in GATED_DELTA:
        raise LearnerError(
            f"megatron: model_type {family!r} has gated-delta layers, which Megatron-Core runs with "
            f"TransformerEngine and flash-linear-attention alone: there are converters for {_families()}"
        )
    if family not in FAMILIES:
        raise LearnerError(f"megatron: no converter for model_type {family!r}: there are {_families()}")
    _check_parts(family, config)
    theta, factor = _rope(family, config)
    heads, moe = int(config["num_attention_heads"]), family == "qwen3_moe"
    return Architecture(
        family=family,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=heads,
        groups=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or config["hidden_size"] // heads),
        intermediate=0 if moe else int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_moe"),
        eps=float(config["rms_norm_eps"]),
        rope_theta=theta,
        rope_factor=factor,
        experts=int(config.get("num_experts") or config["num_local_experts"]) if moe else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if moe else 0,
        expert_intermediate=int(config["moe_intermediate_size"]) if moe else 0,
        normalised_gates=bool(config.get("norm_topk_prob", False)),
        context=int(config.get("max_position_embeddings") or 4096),
    )


def _families() -> str:
    return ", ".join(FAMILIES)


def _check_parts(family: str, config: Mapping[str, Any]) -> None:
    """Refuses what would be lost on the way."""
    layers = config.get("layer_types") or ()
    found = {
        "hidden_act": config.get("hidden_act") if config.get("hidden_act") != "silu" else None,
        "attention_bias": config.get("attention_bias"),
        "mlp_bias": config.get("mlp_bias"),
        "layer_types": sorted(set(layers) - {"full_attention"}) or None,
        "use_sliding_window": config.get("use_sliding_window"),
        "mlp_only_layers": config.get("mlp_only_layers"),
        "decoder_sparse_step": None
        if config.get("decoder_sparse_step") in (None, 1)
        else config["decoder_sparse_step"],
        "num_experts_per_tok": 1 if config.get("num_experts_per_tok") == 1 else None,
        "attention_dropout": config.get("attention_dropout"),
    }
    for name, value in found.items():
        if value:
            raise LearnerError(f"megatron: {family} with {name} {value!r} is not converted")


def _rope(family: str, config: Mapping[str, Any]) -> tuple[float, float | None]:
    """Theta, and the factor of Llama 3's scaling."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise LearnerError(f"megatron: {family} with partial rotary positions is not converted")
    if kind == "default":
        return theta, None
    own = {name: float(rope.get(name, -1)) for name in LLAMA3_ROPE}
    if kind != "llama3" or own != LLAMA3_ROPE:
        raise LearnerError(
            f"megatron: {family} with rope_type {kind!r} {rope} is not converted: allowed are default, and "
            f"llama3 with {LLAMA3_ROPE}"
        )
    return theta, float(rope["factor"])
