"""Parts of a Megatron-Core transformer that its own library lacks without TransformerEngine.

A norm that knows sequence parallelism, and an attention that runs packed rows and rows shared by
context-parallel processes, both from torch alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor

from roll_learners.megatron.context import context_places


class RmsNorm(torch.nn.Module):
    """[..., H] divided by its root mean square, in float32, times a weight[H]."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        """Args:
        config: Of the model.
        hidden_size: H.
        eps: Added to the mean square.
        """
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, device=torch.cuda.current_device(), dtype=config.params_dtype)
        )
        # What tells Megatron-Core that each tensor-parallel process has the gradient of its tokens alone.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, states: Tensor) -> Tensor:
        """The normalised states."""
        wide = states.double() if states.dtype == torch.float64 else states.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(states.dtype)


class CausalAttention(MegatronModule):  # type: ignore[misc]  # the library has no types
    """Causal attention of query heads that share key-value heads, by torch's fused kernels."""

    def __init__(self, config: TransformerConfig, layer_number: int, pg_collection: Any, **_: Any) -> None:
        """Args:
        config: Of the model.
        layer_number: Not used; the library passes it.
        pg_collection: Its groups.
        """
        super().__init__(config=config)
        self._context = pg_collection.cp

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> Tensor:
        """[T, B, H * D].

        Args:
            query: [T, B, H, D], of this process's tokens.
            key: [T, B, G, D], likewise.
            value: [T, B, G, D].
            attention_mask: int64[S + 1], where the samples of a packed row begin, and T; None where a row is
                one sample.
        """
        if self._context.size() > 1:
            return self._shared(query, key, value)
        if attention_mask is None:
            return _joined_heads(_attend(query, key, value))
        bounds = attention_mask.tolist()
        parts = [
            _attend(query[start:stop], key[start:stop], value[start:stop]) for start, stop in pairwise(bounds)
        ]
        return _joined_heads(torch.cat(parts))

    def _shared(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The keys and values of all context-parallel processes meet the queries of this one."""
        ranks, rank = self._context.size(), self._context.rank()
        length = len(query) * ranks
        places = torch.cat([context_places(length, r, ranks) for r in range(ranks)])
        back = torch.argsort(places).to(query.device)
        keys, values = (
            gather_from_sequence_parallel_region(each.contiguous(), group=self._context).index_select(0, back)
            for each in (key, value)
        )
        own = context_places(length, rank, ranks).to(query.device)
        mask = own[:, None] >= torch.arange(length, device=query.device)[None, :]
        return _joined_heads(_attend(query, keys, values, mask))


class PlainRouter(TopKRouter):  # type: ignore[misc]  # the library has no types
    """The library's router, whose scores it makes with TransformerEngine alone: here torch makes them."""

    def gating(self, input: Tensor) -> Tensor:
        """[..., E] scores in float32 of states[..., H]."""
        return F.linear(input.float(), self.weight.float())


def decoder_spec(
    config: TransformerConfig, *, layers: int, qk_norm: bool, experts: bool
) -> TransformerBlockSubmodules:
    """The layers of a decoder, or of a part of one.

    Args:
        config: Of the model.
        layers: In this part.
        qk_norm: Queries and keys are normalised.
        experts: Feed-forward layers are mixtures.
    """
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=CausalAttention,
            linear_proj=RowParallelLinear,
            q_layernorm=RmsNorm if qk_norm else IdentityOp,
            k_layernorm=RmsNorm if qk_norm else IdentityOp,
        ),
    )
    gated = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    dense = ModuleSpec(module=MLP, submodules=gated)
    mixture = ModuleSpec(
        module=MoELayer,
        submodules=MoESubmodules(
            router=PlainRouter, experts=ModuleSpec(module=SequentialMLP, submodules=gated)
        ),
    )
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RmsNorm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RmsNorm,
            mlp=mixture if experts else dense,
            mlp_bda=get_bias_dropout_add,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=RmsNorm)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """[T, B, H, D]; causal without a mask."""
    q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return attended.permute(2, 0, 1, 3)


def _joined_heads(states: Tensor) -> Tensor:
    return states.reshape(*states.shape[:2], -1)
