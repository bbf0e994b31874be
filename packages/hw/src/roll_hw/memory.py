"""Estimates of device memory per phase, from a model's shape. Called when a run is checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from roll_hw.errors import HwError
from roll_hw.transformer_shape import TransformerShape, parameter_count

__all__ = ["MemoryEstimate", "estimate_rollout_memory", "estimate_training_memory"]

GIB = 2.0**30
FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory by what it is for, for example `{"weights": 0.93, "gradients": 0.93, ...}`.

    Attributes:
        parts: GiB by name.
    """

    parts: Mapping[str, float]

    @property
    def total_gib(self) -> float:
        """Sum of the parts, GiB."""
        return sum(self.parts.values())


def estimate_training_memory(
    shape: TransformerShape,
    *,
    bytes_per_parameter: int,
    micro_batch_tokens: int,
    trainable_fraction: float = 1.0,
    logits_tokens: int | None = None,
    adam_bytes_per_parameter: int | None = None,
) -> MemoryEstimate:
    """Memory of one unsharded learner at the peak of a micro-batch, without activation checkpointing.

    Weights and gradients are exact in the parameters' dtype. The optimizer is AdamW: `torch.optim.AdamW`
    keeps two moments in the dtype of the parameters, which is the default here; bf16 weights with fp32
    moments and an fp32 master copy take 12 bytes. Activations are rough: with c bytes a value, hidden size H,
    a query and k key-value heads of width d, and MLP width F (in a sparse layer H / 2 + expert width for each
    expert of a token), a layer keeps for each token

        c * (4 H + (3 a + 2 k) d + 4 F) + 8 H    bytes,

    where 8 H are the two norms' fp32 inputs; per-head norms of queries and keys add (4 + c) (a + k) d. The
    attention matrix is not kept (flash or memory-efficient attention). Logits are kept as computed, as fp32
    log-probabilities and as their gradient: (c + 8) bytes a vocabulary entry.

    Args:
        shape: The model.
        bytes_per_parameter: 4 for fp32, 2 for bf16; also that of activations.
        micro_batch_tokens: Tokens of a micro-batch, >= 1.
        trainable_fraction: Share of the parameters that is trained, 0 to 1.
        logits_tokens: Tokens whose logits exist at a time; all of the micro-batch by default.
        adam_bytes_per_parameter: AdamW's bytes for each trained parameter, by default twice the weight's.

    Raises:
        HwError: If a number is out of its range.

    Source: counting after Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1.
    Differs: gated MLP, grouped-query attention and RMS norms without dropout, instead of a GPT block.
    """
    _check_at_least(1, bytes_per_parameter=bytes_per_parameter, micro_batch_tokens=micro_batch_tokens)
    logits_tokens = micro_batch_tokens if logits_tokens is None else logits_tokens
    adam_bytes = 2 * bytes_per_parameter if adam_bytes_per_parameter is None else adam_bytes_per_parameter
    _check_at_least(0, logits_tokens=logits_tokens, adam_bytes_per_parameter=adam_bytes)
    if not 0.0 <= trainable_fraction <= 1.0:
        raise HwError(f"trainable_fraction: got {trainable_fraction}, allowed is 0 to 1")
    parameters = parameter_count(shape)
    trained = parameters * trainable_fraction
    return _estimate(
        weights=parameters * bytes_per_parameter,
        gradients=trained * bytes_per_parameter,
        optimizer=trained * adam_bytes,
        activations=micro_batch_tokens * _activation_bytes(shape, bytes_per_parameter),
        logits=logits_tokens * shape.vocab_size * (bytes_per_parameter + 2 * FP32),
    )


def estimate_rollout_memory(
    shape: TransformerShape, *, bytes_per_parameter: int, max_batch: int, max_context: int
) -> MemoryEstimate:
    """Memory of one engine whose whole batch has reached the longest context.

    The KV cache holds 2 * layers * key-value heads * head width values a token; the logits of the next token
    are kept twice in fp32 (logits and log-probabilities).

    Args:
        shape: The model.
        bytes_per_parameter: 4 for fp32, 2 for bf16; also that of the cache.
        max_batch: Sequences at a time, >= 1.
        max_context: Tokens of prompt and completion, >= 1.

    Raises:
        HwError: If a number is out of its range.
    """
    _check_at_least(1, bytes_per_parameter=bytes_per_parameter)
    _check_at_least(1, max_batch=max_batch, max_context=max_context)
    cached = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return _estimate(
        weights=parameter_count(shape) * bytes_per_parameter,
        kv_cache=max_batch * max_context * cached * bytes_per_parameter,
        logits=max_batch * shape.vocab_size * 2 * FP32,
    )


def _activation_bytes(shape: TransformerShape, value_bytes: int) -> float:
    """Bytes that all layers keep for the gradient of one token; see `estimate_training_memory`."""
    hidden, heads, kv_heads = shape.hidden_size, shape.num_heads, shape.num_kv_heads
    attention = 4 * hidden + (3 * heads + 2 * kv_heads) * shape.head_dim
    head_norms = shape.qk_norm * (FP32 + value_bytes) * (heads + kv_heads) * shape.head_dim
    every = value_bytes * attention + 2 * FP32 * hidden + head_norms
    dense_layers = shape.num_dense_layers if shape.num_experts else shape.num_layers
    dense = 4 * shape.intermediate_size
    sparse = 4 * shape.experts_per_token * (shape.moe_intermediate_size + hidden / 2)
    mlps = dense_layers * dense + (shape.num_layers - dense_layers) * sparse
    return shape.num_layers * every + value_bytes * mlps


def _estimate(**bytes_by_part: float) -> MemoryEstimate:
    return MemoryEstimate(parts={part: size / GIB for part, size in bytes_by_part.items()})


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise HwError(f"{name}: got {value}, allowed is >= {least}")
