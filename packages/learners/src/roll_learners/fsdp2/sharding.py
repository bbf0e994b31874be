"""Cuts a model of transformers into the shards of a layout, in place: tensor, experts, then FSDP2.

The one module that knows `transformers.distributed` (of 5.19 and later 5.x), whose plans say how the matrices
and experts of each family are divided.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.distributed.tensor_parallel import apply_expert_parallelism, apply_tensor_parallelism

from roll_learners.errors import LearnerError
from roll_learners.fsdp2.layout import Layout, Sharding, check_sizes
from roll_learners.fsdp2.meshes import Meshes

PARTIAL = "replicated_with_grad_allreduce"
"""Style of parameters that every tensor rank holds whole and uses for its own heads alone: the sum of their
gradients over these ranks is left to the learner, once an update instead of once a micro-batch."""

PACKED = "packed"
"""How the styles of parameters begin that hold several matrices, such as an expert's gate and up."""

HEAD, EMBEDDING = "lm_head", "embed_tokens"


def check_family(model: PreTrainedModel, layout: Layout) -> None:
    """Compares a layout with a model; needs no process group.

    Raises:
        LearnerError: As `check_sizes`; or the model's family has no layers, no tensor-parallel plan or no
            expert-parallel plan where the layout needs them.
    """
    check_sizes(layout, model.config.get_text_config().to_dict())
    decoder_layers(model)
    family = type(model).__name__
    if layout.tensor > 1 and not _tensor_plan(model, layout):
        raise LearnerError(
            f"fsdp2 tensor {layout.tensor}: {family} has no tensor-parallel plan in transformers"
        )
    if layout.expert > 1 and not model.ep_plan:
        raise LearnerError(
            f"fsdp2 expert {layout.expert}: {family} has no expert-parallel plan in transformers"
        )


class Sharded(NamedTuple):
    """Attributes:
    partial: Parameters whose gradients are to be summed over the tensor ranks.
    packed: Parameters whose tensor ranks hold rows of several matrices, which are not adjacent.
    """

    partial: list[nn.Parameter]
    packed: list[nn.Parameter]


def shard_model(model: PreTrainedModel, root: nn.Module, meshes: Meshes, sharding: Sharding) -> Sharded:
    """Shards the model, which is at the same values on every rank.

    Args:
        model: On the host; what a rank does not hold is freed.
        root: The module whose forward is called, which holds the model.
        meshes: Of `sharding.layout`.
        sharding: Precision, offload and recomputation.

    Returns:
        What the learner has to know of some parameters.
    """
    layout = sharding.layout
    plan: dict[str, str] = {}
    if meshes.tensor is not None:
        plan = _tensor_plan(model, layout)
        apply_tensor_parallelism(  # type: ignore[no-untyped-call]  # of transformers
            model, meshes.tensor, {name: style for name, style in plan.items() if style != PARTIAL}
        )
    if meshes.experts is not None:
        apply_expert_parallelism(model, meshes.experts, None, model.ep_plan)  # type: ignore[arg-type]  # None: one tensor rank
    layers = decoder_layers(model)
    if sharding.recompute:
        for layer in layers:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    policies: dict[str, Any] = {"mp_policy": _precision(sharding)}
    if sharding.offload:
        policies["offload_policy"] = CPUOffloadPolicy()
    again = sharding.reshard_after_forward
    if meshes.expert_shards is not None:
        for module in _dispatching(model):
            fully_shard(module, mesh=meshes.expert_shards, reshard_after_forward=again, **policies)
    for layer in layers:
        fully_shard(layer, mesh=meshes.parameters, reshard_after_forward=again, **policies)
    fully_shard(root, mesh=meshes.parameters, reshard_after_forward=again, **policies)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses have the denominators of the whole batch, so gradients are summed and never averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    styles = {name: _style(plan, name) for name, _ in model.named_parameters()}
    return Sharded(
        partial=[each for name, each in model.named_parameters() if styles[name] == PARTIAL],
        packed=[each for name, each in model.named_parameters() if styles[name].startswith(PACKED)],
    )


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The decoder's layers.

    Raises:
        LearnerError: The model has no decoder with `layers`.
    """
    # transformers leaves the method untyped.
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    layers = dict(decoder.named_children()).get("layers") if isinstance(decoder, nn.Module) else None
    if not isinstance(layers, nn.ModuleList):
        raise LearnerError(f"fsdp2: {type(model).__name__} has no decoder with `layers`")
    return list(layers)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor, gathered; every rank that holds a part of it has to call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    # In order of the mesh: what FSDP2 cut last is joined first.
    for dimension in range(tensor.device_mesh.ndim):
        placements = [*[Replicate()] * (dimension + 1), *tensor.placements[dimension + 1 :]]
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def unpacked(tensor: Tensor) -> Tensor:
    """A packed parameter, or what belongs to it, in the same shards but whole for each tensor rank: its parts
    on these are no ranges of rows, which is what checkpoints know. Every rank calls it."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.redistribute(placements=[*tensor.placements[:-1], Replicate()])


def _tensor_plan(model: PreTrainedModel, layout: Layout) -> dict[str, str]:
    """Styles by names with `*` for the number of a layer. Embedding and head stay whole where they are one
    tensor, or where their rows do not divide."""
    plan = dict(model.tp_plan)
    text = model.config.get_text_config()
    ends = {name: name.rpartition(".")[2] for name in plan}
    if text.tie_word_embeddings or int(text.vocab_size) % layout.tensor:
        plan = {name: style for name, style in plan.items() if ends[name] not in (HEAD, EMBEDDING)}
    return plan if any(ends[name] not in (HEAD, EMBEDDING) for name in plan) else {}


def _style(plan: Mapping[str, str], parameter: str) -> str:
    """That of a parameter, or of its module."""
    name = _wildcard(parameter)
    return plan.get(name) or plan.get(name.rpartition(".")[0], "")


def _dispatching(model: PreTrainedModel) -> Iterator[nn.Module]:
    for name, module in model.named_modules():
        if model.ep_plan.get(_wildcard(name)) == "ep_dispatch_experts":
            yield module


def _wildcard(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _precision(sharding: Sharding) -> MixedPrecisionPolicy:
    # The root's inputs are columns of losses, which keep their dtype.
    return MixedPrecisionPolicy(
        param_dtype=None if sharding.precision is None else getattr(torch, sharding.precision),
        reduce_dtype=None if sharding.precision is None else getattr(torch, sharding.reduce_precision),
        cast_forward_inputs=False,
    )
