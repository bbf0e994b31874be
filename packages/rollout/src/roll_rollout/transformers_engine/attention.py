"""Attention of one new token a row over a cache with fewer key heads than query heads.

Registered with transformers through its public attention interface and chosen by `TransformersEngine`. It
stays with the model, and with others that share its configuration object, after the engine is closed. The
stock "sdpa" function repeats the whole key-value cache for grouped-query models at every step whenever a mask
is given; here the query heads that share a key head become the query positions of one attention call instead,
and nothing is copied. All other calls go to the stock function, so that training is not affected.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_ATTENTION = "roll_grouped_sdpa"


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Switches a model from "sdpa" to `GROUPED_ATTENTION`; leaves other implementations alone."""
    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
    AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)
    model.set_attn_implementation(GROUPED_ATTENTION)


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the form transformers calls it.

    Args:
        module: The attention layer; only the stock function looks at it.
        query: [B, Hq, Q, D].
        key: [B, Hk, K, D], Hk divides Hq.
        value: [B, Hk, K, Dv].
        attention_mask: Additive or boolean, broadcastable to [B, 1, Q, K'] with K' of at least K; a longer
            one is cut at the front, as sliding-window layers are given fewer keys.
        dropout: As in the stock function.
        scaling: Factor of the scores.
        **kwargs: Passed on to the stock function.

    Returns:
        [B, Q, Hq, Dv], and None in place of attention weights.
    """
    batch, heads, queries, width = query.shape
    if queries != 1 or dropout != 0.0 or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is not None:
        attention_mask = attention_mask[..., -key.shape[2] :]
    key_heads = key.shape[1]
    grouped = query.view(batch, key_heads, heads // key_heads, width)
    mixed = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return mixed.view(batch, 1, heads, mixed.shape[-1]), None
