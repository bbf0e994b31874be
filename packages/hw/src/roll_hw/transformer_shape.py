"""Sizes of a decoder-only transformer, read from its `config.json`, and its number of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from roll_hw.errors import HwError

__all__ = ["TransformerShape", "parameter_count", "transformer_shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Sizes of a model with RMS norms, rotary positions, grouped-query attention and gated MLPs.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        num_layers: Layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        intermediate_size: Width of a dense MLP.
        tied_embeddings: Whether the output layer shares the embedding's weights.
        num_experts: Experts of a sparse layer, 0 without sparse layers.
        moe_intermediate_size: Width of one expert.
        experts_per_token: Experts that a token goes through.
        num_dense_layers: Layers with a dense MLP in a model with experts.
        qkv_bias: Whether query, key and value projections have a bias.
        output_bias: Whether the attention's output projection has one.
        mlp_bias: Whether dense MLPs have biases.
        qk_norm: Whether queries and keys are normalised per head.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    tied_embeddings: bool
    num_experts: int = 0
    moe_intermediate_size: int = 0
    experts_per_token: int = 0
    num_dense_layers: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
QWEN3_HEAD_DIM = 128


def transformer_shape(config: Mapping[str, object]) -> TransformerShape:
    """The shape that a Hugging Face `config.json` describes; absent keys count as they do in transformers.

    Args:
        config: The parsed file. `model_type` is one of llama, mistral, qwen2, qwen3, qwen3_moe.

    Raises:
        HwError: If a key is missing or its value is impossible, or the model type is not one of those.
    """
    family = _required(config, "model_type")
    if family not in FAMILIES:
        raise HwError(f"config: model_type is {family!r}, allowed is one of {', '.join(FAMILIES)}")
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    num_kv_heads = (
        num_heads if _absent(config, "num_key_value_heads") else _size(config, "num_key_value_heads")
    )
    if num_heads % num_kv_heads:
        raise HwError(
            f"config: num_key_value_heads {num_kv_heads} does not divide num_attention_heads {num_heads}"
        )
    bias = family != "mistral" and family != "qwen2" and _flag(config, "attention_bias")
    layers = _size(config, "num_hidden_layers")
    experts = _experts(config, layers) if family == "qwen3_moe" else _Experts()
    return TransformerShape(
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, hidden_size, num_heads),
        intermediate_size=_size(config, "intermediate_size"),
        tied_embeddings=_flag(config, "tie_word_embeddings"),
        num_experts=experts.number,
        moe_intermediate_size=experts.width,
        experts_per_token=experts.per_token,
        num_dense_layers=experts.dense_layers,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and _flag(config, "mlp_bias"),
        qk_norm=family in ("qwen3", "qwen3_moe"),
    )


def parameter_count(shape: TransformerShape) -> int:
    """Number of parameters, tied ones once."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = shape.hidden_size * (2 * queries + 2 * keys)
    attention += shape.qkv_bias * (queries + 2 * keys) + shape.output_bias * shape.hidden_size
    attention += shape.qk_norm * 2 * shape.head_dim
    dense = 3 * shape.hidden_size * shape.intermediate_size
    dense += shape.mlp_bias * (2 * shape.intermediate_size + shape.hidden_size)
    expert = 3 * shape.hidden_size * shape.moe_intermediate_size
    sparse = shape.num_experts * (expert + shape.hidden_size)
    dense_layers = shape.num_dense_layers if shape.num_experts else shape.num_layers
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
    norms = (2 * shape.num_layers + 1) * shape.hidden_size
    mlps = dense_layers * dense + (shape.num_layers - dense_layers) * sparse
    return embeddings + norms + shape.num_layers * attention + mlps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    number: int = 0
    width: int = 0
    per_token: int = 0
    dense_layers: int = 0


def _experts(config: Mapping[str, object], layers: int) -> _Experts:
    key = "num_local_experts" if _absent(config, "num_experts") else "num_experts"
    if _absent(config, key):
        raise HwError(f"config: the key 'num_experts' is missing; there are {_listed(config)}")
    step = 1 if _absent(config, "decoder_sparse_step") else _size(config, "decoder_sparse_step")
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list | tuple):
        raise HwError(f"config: mlp_only_layers is {dense!r}, allowed is a list of layers")
    sparse_layers = [layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0]
    return _Experts(
        number=_size(config, key),
        width=_size(config, "moe_intermediate_size"),
        per_token=_size(config, "num_experts_per_tok"),
        dense_layers=layers - len(sparse_layers),
    )


def _head_dim(config: Mapping[str, object], hidden_size: int, num_heads: int) -> int:
    if not _absent(config, "head_dim"):
        return _size(config, "head_dim")
    if config["model_type"] == "qwen3":
        return QWEN3_HEAD_DIM
    if hidden_size % num_heads:
        raise HwError(f"config: num_attention_heads {num_heads} does not divide hidden_size {hidden_size}")
    return hidden_size // num_heads


def _absent(config: Mapping[str, object], key: str) -> bool:
    return config.get(key) is None


def _required(config: Mapping[str, object], key: str) -> object:
    if _absent(config, key):
        raise HwError(f"config: the key {key!r} is missing; there are {_listed(config)}")
    return config[key]


def _size(config: Mapping[str, object], key: str) -> int:
    value = _required(config, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HwError(f"config: {key} is {value!r}, allowed is an integer >= 1")
    return value


def _flag(config: Mapping[str, object], key: str) -> bool:
    value = config.get(key) or False
    if not isinstance(value, bool):
        raise HwError(f"config: {key} is {value!r}, allowed is true or false")
    return value


def _listed(config: Mapping[str, object]) -> str:
    return ", ".join(sorted(config)) or "none"
