"""One token a row through a dense decoder, straight on its weights: what is left without module calls.

At a few hundred thousand parameters most of a step of transformers' own forward is Python between tensor
operations, and at a hundred million still a fifth. Here a layer is some twenty-five operations and nothing
else. Only architectures whose step is known are taken, and the engine compares the first step of each with
that of the model itself before it relies on it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from roll_rollout.transformers_engine.attention import GROUPED_ATTENTION
from roll_rollout.transformers_engine.kv_slots import KvSlots

_KNOWN = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    """The parameters of a layer. They are the model's own, so that an update of them is seen here."""

    before: torch.Tensor
    query: tuple[torch.Tensor, torch.Tensor | None]
    key: tuple[torch.Tensor, torch.Tensor | None]
    value: tuple[torch.Tensor, torch.Tensor | None]
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: tuple[torch.Tensor, torch.Tensor | None]
    after: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class LeanDecode:
    """The step of one model.

    Args:
        model: In evaluation mode; one that `lean_decode` accepts.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        body: Any = model.get_decoder()  # type: ignore[no-untyped-call] # transformers leaves it untyped
        first = body.layers[0]
        self._embedding = body.embed_tokens.weight
        self._head = _linear(model.get_output_embeddings())  # type: ignore[no-untyped-call] # as above
        self._norm = body.norm.weight
        self._epsilon = float(body.norm.variance_epsilon)
        self._rotary = body.rotary_emb
        self._width = int(first.self_attn.head_dim)
        self._scaling = float(first.self_attn.scaling)
        self._layers = [_layer(layer) for layer in body.layers]
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, slots: KvSlots) -> torch.Tensor:
        """Returns logits [B, V], and leaves keys and values of the step in the slots.

        Args:
            tokens: int64[B], the newest of each row.
            positions: int64[B], where they stand.
            slots: Between `begin_step` and `end_step`.
        """
        mask, width, epsilon = slots.mask, self._width, self._epsilon
        hidden = embedding(tokens, self._embedding)
        shape = hidden.shape[-1:]
        cos, sin = self._turn(positions, hidden)
        for index, layer in enumerate(self._layers):
            normed = rms_norm(hidden, shape, layer.before, epsilon)
            query = linear(normed, *layer.query).view(len(tokens), -1, width)
            key = linear(normed, *layer.key).view(len(tokens), -1, width)
            value = linear(normed, *layer.value).view(len(tokens), -1, 1, width)
            if layer.query_norm is not None and layer.key_norm is not None:
                query = rms_norm(query, (width,), layer.query_norm, epsilon)
                key = rms_norm(key, (width,), layer.key_norm, epsilon)
            heads = query.shape[1]
            turned = torch.cat((query, key), dim=1)
            turned = (
                turned * cos + torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), -1) * sin
            )
            keys, values = slots.append(index, turned[:, heads:, None], value)
            grouped = turned[:, :heads].view(len(tokens), keys.shape[1], -1, width)
            seen = None if mask is None else mask[..., -keys.shape[2] :]
            mixed = scaled_dot_product_attention(
                grouped, keys, values, attn_mask=seen, scale=self._scaling
            ).view(len(tokens), heads * width)
            hidden = hidden + linear(mixed, *layer.output)
            normed = rms_norm(hidden, shape, layer.after, epsilon)
            gated = silu(linear(normed, layer.gate)).mul_(linear(normed, layer.up))
            hidden = hidden + linear(gated, layer.down)
        return linear(rms_norm(hidden, shape, self._norm, epsilon), *self._head)

    def _turn(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rotary factors [B, 1, D] of some positions, from a table that grows."""
        needed = int(positions.max()) + 1
        if self._angles is None or len(self._angles[0]) < needed or self._angles[0].device != like.device:
            every = torch.arange(1 << max(6, (needed - 1).bit_length()), device=like.device)
            cos, sin = self._rotary(like[:1], every[None])
            self._angles = (cos[0], sin[0])
        cos, sin = self._angles
        return cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)


def lean_decode(model: PreTrainedModel) -> LeanDecode | None:
    """Returns the step of a model on its weights alone; None if it is not known how its step goes."""
    name, module = type(model).__name__, type(model).__module__
    config: Any = model.config
    if name not in _KNOWN or not module.startswith("transformers.models."):
        return None
    if config._attn_implementation != GROUPED_ATTENTION or config.hidden_act != "silu":
        return None
    if any(_watched(part) for part in model.modules()):
        return None
    body: Any = model.get_decoder()  # type: ignore[no-untyped-call] # transformers leaves it untyped
    if body.rotary_emb.rope_type not in _FIXED_ROPE:
        return None
    try:
        return LeanDecode(model)
    except AttributeError:
        # A release of transformers that names its parts otherwise: its own step will do.
        return None


def _watched(module: torch.nn.Module) -> bool:
    """Whether somebody else has a hand in a module's forward, which the lean step would pass by."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = "q_norm" in attention._modules
    for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        if each.bias is not None:
            raise AttributeError("a feed-forward layer with biases")
    return _Layer(
        before=layer.input_layernorm.weight,
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=attention.q_norm.weight if normed else None,
        key_norm=attention.k_norm.weight if normed else None,
        output=_linear(attention.o_proj),
        after=layer.post_attention_layernorm.weight,
        gate=mlp.gate_proj.weight,
        up=mlp.up_proj.weight,
        down=mlp.down_proj.weight,
    )


def _linear(module: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    return module.weight, module.bias
