"""A causal language model, or a critic, of Megatron-Core modules: this process's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_from_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from roll_learners.megatron.architecture import Architecture
from roll_learners.megatron.groups import Groups
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.modules import decoder_spec
from roll_learners.megatron.rules import Head

RECOMPUTE: Mapping[str, dict[str, object]] = {
    "none": {},
    "attention": {"recompute_granularity": "selective"},
    "layers": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


class DecoderModel(GPTModel):  # type: ignore[misc]  # the library has no types
    """The part of one pipeline stage. It ends with states, not logits: heads run at trained tokens alone."""

    def forward(self, input_ids: Tensor, position_ids: Tensor | None, boundaries: Tensor | None) -> Tensor:
        """[T, B, H], or this process's share of T where sequence or context are parallel.

        Args:
            input_ids: int64[B, T], those of this context-parallel process.
            position_ids: int64[1, T] of a packed row; None counts every row from 0.
            boundaries: int64[S + 1], where the samples of a packed row begin, and T; None where rows are
                samples.
        """
        states = self.embedding(input_ids, position_ids) if self.pre_process else None
        length = input_ids.shape[1]
        if position_ids is None:
            rotary = self.rotary_pos_emb(length * self.config.context_parallel_size)
        else:
            rotary = self.rotary_pos_emb.get_emb(length)[position_ids[0]]
        decoded: Tensor = self.decoder(hidden_states=states, attention_mask=boundaries, rotary_pos_emb=rotary)
        return decoded

    def token_states(self, states: Tensor, places: Tensor, *, replicated: bool) -> Tensor:
        """[N, H] of all tensor-parallel processes' tokens.

        Args:
            states: What `forward` gave in the last stage.
            places: int64[N], in the B * T tokens of the rows.
            replicated: What is computed from the result is the same in all tensor-parallel processes, so that
                its gradients are not summed.
        """
        if self.config.sequence_parallel:
            states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=not replicated)
        return states.transpose(0, 1).flatten(0, 1)[places]


class ValueHead(torch.nn.Module):
    """One number from each state; every tensor-parallel process has the whole of it."""

    def __init__(self, config: TransformerConfig) -> None:
        """Args:
        config: Of the model.
        """
        super().__init__()
        device = torch.cuda.current_device()
        self.weight = torch.nn.Parameter(
            torch.empty(1, config.hidden_size, device=device, dtype=config.params_dtype)
        )
        self.bias = torch.nn.Parameter(torch.empty(1, device=device, dtype=config.params_dtype))

    def forward(self, states: Tensor) -> Tensor:
        """[N] of states[N, H]."""
        return F.linear(states, self.weight, self.bias).squeeze(-1)


def build_parts(
    model: Architecture, groups: Groups, *, dtype: torch.dtype, head: Head
) -> Sequence[DecoderModel]:
    """This process's parts of the model, one for each chunk of its stage; their weights are not set.

    Args:
        model: The architecture.
        groups: Of this process.
        dtype: Of the weights.
        head: What stands on the decoder.
    """
    from megatron.core import parallel_state

    layout = groups.layout
    config = transformer_config(model, layout, dtype)
    layers = model.layers // (layout.pipeline * layout.virtual_pipeline)
    spec = decoder_spec(config, layers=layers, qk_norm=model.qk_norm, experts=model.experts > 0)
    parts = []
    for chunk in range(layout.virtual_pipeline):
        stage = {"ignore_virtual": False, "vp_stage": chunk if layout.virtual_pipeline > 1 else None}
        last = parallel_state.is_pipeline_last_stage(**stage)
        part = DecoderModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=layout.padded_vocabulary(model.vocabulary),
            max_sequence_length=model.context,
            pre_process=parallel_state.is_pipeline_first_stage(**stage),
            post_process=last,
            share_embeddings_and_output_weights=model.tied and head == "language",
            position_embedding_type="rope",
            rotary_base=model.rope_theta,
            rope_scaling=model.rope_factor is not None,
            rope_scaling_factor=model.rope_factor or 1.0,
            vp_stage=stage["vp_stage"],
        )
        if head == "value" and last:
            part.output_layer, part.score = None, ValueHead(config)
        _mark_divided(part)
        parts.append(part)
    return parts


def _mark_divided(part: DecoderModel) -> None:
    """Says which matrices are pieces: the norm of a gradient counts these in every process.

    The library says so itself of biases, and of the matrices that it draws.
    """
    for module in part.modules():
        dimension = 1 if isinstance(module, RowParallelLinear) else 0
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
            weight = module.weight
            if weight is not None and not hasattr(weight, "tensor_model_parallel"):
                set_tensor_model_parallel_attributes(weight, True, dimension, 1)


def transformer_config(model: Architecture, layout: MegatronLayout, dtype: torch.dtype) -> TransformerConfig:
    """Megatron-Core's settings for an architecture in a layout.

    Args:
        model: The architecture.
        layout: How it is spread.
        dtype: Of weights and of what stages send each other.
    """
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.intermediate or model.expert_intermediate,
        num_attention_heads=model.heads,
        num_query_groups=model.groups,
        kv_channels=model.head,
        normalization="RMSNorm",
        layernorm_epsilon=model.eps,
        qk_layernorm=model.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.tensor,
        sequence_parallel=layout.sequence_parallel,
        # Rows of one micro-batch are as long as its longest, so stages tell each other the length.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        # Losses come with the denominators of the whole mini-batch: gradients are summed, never averaged.
        calculate_per_token_loss=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Between two interleaved stages messages run both ways at once, which a batch of them confuses.
        batch_p2p_comm=layout.virtual_pipeline == 1,
        overlap_p2p_comm=layout.virtual_pipeline > 1,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        **(_mixture(model) if model.experts else {}),
        **RECOMPUTE[layout.recompute],
    )


def _mixture(model: Architecture) -> dict[str, object]:
    """Settings of a mixture of experts."""
    return {
        "num_moe_experts": model.experts,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_intermediate,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        # The gates of the chosen experts add up to 1 if softmax runs over these alone.
        "moe_router_pre_softmax": not model.normalised_gates,
    }
