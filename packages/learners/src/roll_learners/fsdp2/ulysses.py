"""Attention over sequences that are divided over ranks: each rank exchanges tokens for heads, and back.

Source: "DeepSpeed Ulysses", arXiv 2309.14509.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from roll_learners.errors import LearnerError
from roll_learners.fsdp2.sharding import decoder_layers

ULYSSES = "roll_ulysses"
"""Name of the attention function."""

_groups: WeakKeyDictionary[nn.Module, dist.ProcessGroup] = WeakKeyDictionary()


def divide_attention(model: PreTrainedModel, group: dist.ProcessGroup) -> None:
    """Makes the model's attention work on sequences of which each rank of the group holds a slice.

    Raises:
        LearnerError: The layers have no `self_attn` that calls the attention function of the configuration.
    """
    AttentionInterface.register(ULYSSES, ulysses_attention)
    AttentionMaskInterface.register(ULYSSES, _given_mask)
    for layer in decoder_layers(model):
        attention = dict(layer.named_children()).get("self_attn")
        if attention is None:
            raise LearnerError(f"fsdp2 context: a layer of {type(model).__name__} has no `self_attn`")
        _groups[attention] = group
    model.set_attn_implementation(ULYSSES)


def ulysses_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' kind.

    Args:
        module: The attention layer, which knows its group through `divide_attention`.
        query: [B, H, T / ranks, D], of this rank's tokens.
        key: [B, K, T / ranks, D].
        value: [B, K, T / ranks, D].
        attention_mask: Of whole sequences, [B, 1, T, T], or None: causal.
        scaling: Of the products.

    Returns:
        [B, T / ranks, H, D], and no weights.
    """
    group = _groups[module]
    ranks = dist.get_world_size(group)
    if key.shape[1] % ranks:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    query, key, value = (_Exchange.apply(each, 1, 2, group) for each in (query, key, value))
    out = nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    back: Tensor = _Exchange.apply(out, 2, 1, group)
    return back.transpose(1, 2).contiguous(), None


class _Exchange(torch.autograd.Function):
    """Cuts one dimension into a part for each rank, and joins what comes back along another."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cut: int, join: int, group: dist.ProcessGroup) -> Tensor:
        ctx.cut, ctx.join, ctx.group = cut, join, group
        return _exchanged(tensor, cut, join, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.join, ctx.cut, ctx.group), None, None, None


def _exchanged(tensor: Tensor, cut: int, join: int, group: dist.ProcessGroup) -> Tensor:
    sent = torch.stack(tensor.chunk(dist.get_world_size(group), dim=cut))
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    return torch.cat(list(got), dim=join)


def _given_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """Masks are of whole sequences, which transformers does not see here."""
    return attention_mask
