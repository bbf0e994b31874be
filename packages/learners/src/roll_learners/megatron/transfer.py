"""Weights from Hugging Face tensors into the parts of a model and back, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from roll_learners.errors import LearnerError
from roll_learners.megatron.architecture import Architecture
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.pieces import filled, fused, parted, piece_bounds
from roll_learners.megatron.rules import Head, Rule, Source, rules, tied_head
from roll_learners.megatron.weights import INDEX, SINGLE, Weights

SHARD_BYTES = 2 * 1024**3
"""Of a file of weights, and so of what the process that writes holds at a time."""


class PartTensors(NamedTuple):
    """Parameters of this process's parts by the rules that make them.

    Attributes:
        model: The architecture.
        layout: Of the processes.
        parameters: By name, of each chunk.
    """

    model: Architecture
    layout: MegatronLayout
    parameters: Sequence[Mapping[str, torch.nn.Parameter]]

    @staticmethod
    def of(model: Architecture, layout: MegatronLayout, parts: Sequence[torch.nn.Module]) -> PartTensors:
        """Those of unwrapped parts."""
        return PartTensors(model, layout, [dict(part.named_parameters()) for part in parts])

    def stage(self, rule: Rule) -> tuple[int, int]:
        """The stage that has the rule's tensor, and its chunk there."""
        layout = self.layout
        if rule.layer is None:
            last = (layout.pipeline - 1, layout.virtual_pipeline - 1)
            return last if rule.place == "last" else (0, 0)
        chunk = rule.layer // self._layers
        return chunk % layout.pipeline, chunk // layout.pipeline

    def expert_rank(self, rule: Rule) -> int | None:
        """The expert-parallel process that has the rule's tensor; None where all have it."""
        return None if rule.expert is None else rule.expert // self._experts

    def own(self, rule: Rule) -> torch.nn.Parameter | None:
        """The parameter of this process, or None if it is another's."""
        stage, chunk = self.stage(rule)
        expert = self.expert_rank(rule)
        if stage != parallel_state.get_pipeline_model_parallel_rank():
            return None
        if expert is not None and expert != parallel_state.get_expert_model_parallel_rank():
            return None
        name = rule.target.format(
            layer=None if rule.layer is None else rule.layer % self._layers,
            expert=None if rule.expert is None else rule.expert % self._experts,
        )
        return self.parameters[chunk][name]

    @property
    def groups(self) -> int:
        """Key-value heads of a tensor-parallel process."""
        return self.model.groups // self.layout.tensor

    @property
    def _layers(self) -> int:
        return self.model.layers // (self.layout.pipeline * self.layout.virtual_pipeline)

    @property
    def _experts(self) -> int:
        return self.model.experts // self.layout.expert


def load_weights(tensors: PartTensors, weights: Weights, head: Head) -> None:
    """Sets every parameter of this process; each process reads its own pieces alone.

    Args:
        tensors: Of this process.
        weights: What is read.
        head: What stands on the decoder.

    Raises:
        LearnerError: A tensor is missing, or has another shape than the configuration says.
    """
    wanted = list(rules(tensors.model, head))
    if tensors.model.tied and head == "language" and tensors.layout.pipeline > 1:
        wanted.append(tied_head(tensors.model))
    loaded = 0
    for rule in wanted:
        parameter = tensors.own(rule)
        if parameter is None:
            continue
        pieces = [_piece(source, weights, rule) for source in rule.sources]
        made = fused(pieces, rule.fusion, tensors.groups)
        with torch.no_grad():
            parameter.copy_(filled(made, len(parameter)))
        loaded += 1
    held = sum(len(each) for each in tensors.parameters)
    if loaded != held:
        raise LearnerError(f"megatron: {loaded} parameters were loaded of {held} that this process holds")


def export_weights(tensors: PartTensors, head: Head) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face names and whole tensors, in the order of the layers; all processes iterate together.

    A process holds one tensor at a time beside its own part of the model. A tied head is not among them.

    Args:
        tensors: Of this process.
        head: What stands on the decoder.
    """
    for rule in rules(tensors.model, head):
        parameter = tensors.own(rule)
        if parameter is None:
            pieces: Sequence[Tensor | None] = [None] * len(rule.sources)
        else:
            ranks = tensors.layout.tensor
            rows = [source.shape[0] // (ranks if source.divided == 0 else 1) for source in rule.sources]
            pieces = parted(parameter.detach(), rule.fusion, tensors.groups, rows)
        dtype = next(iter(tensors.parameters[0].values())).dtype
        for source, piece in zip(rule.sources, pieces, strict=True):
            yield source.name, _spread(tensors, rule, source, piece, dtype)


def save_pretrained(
    tensors: Iterator[tuple[str, Tensor]],
    config: PretrainedConfig,
    directory: str | PathLike[str],
    *,
    writes: bool,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """A Hugging Face directory; all processes take part, and one writes, a file of weights at a time.

    Args:
        tensors: Of `export_weights`.
        config: Written as config.json.
        directory: Made if it does not exist.
        writes: Whether this process writes.
        shard_bytes: A file is begun when the last has so many bytes.
    """
    target = Path(directory)
    if writes:
        target.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(target)
    held: dict[str, Tensor] = {}
    files: list[list[str]] = []
    size = total = 0

    def flush() -> None:
        """Writes what is held."""
        files.append(list(held))
        if writes:
            save_file(held, target / _part(len(files)), metadata={"format": "pt"})
        held.clear()

    for name, tensor in tensors:
        number = tensor.numel() * tensor.element_size()
        if held and size + number > shard_bytes:
            flush()
            size = 0
        held[name] = tensor.cpu().contiguous() if writes else tensor.new_zeros(0)
        size, total = size + number, total + number
    flush()
    if writes:
        _name_files(target, files, total)


def _name_files(target: Path, files: Sequence[Sequence[str]], total: int) -> None:
    """Gives the files of weights their final names, and writes the index of several."""
    if len(files) == 1:
        (target / _part(1)).replace(target / SINGLE)
        return
    places: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        final = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (target / _part(number)).replace(target / final)
        places |= dict.fromkeys(names, final)
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": places}
    (target / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _part(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def _piece(source: Source, weights: Weights, rule: Rule) -> Tensor:
    """What this process needs of a Hugging Face tensor."""
    shape = weights.shape(source.name)
    if shape != source.shape:
        raise LearnerError(
            f"megatron: tensor {source.name!r} has shape {list(shape)}, but the configuration makes it "
            f"{list(source.shape)}"
        )
    if source.divided is None:
        return weights.read(source.name, 0, 0, shape[0])
    rank, ranks = _tensor_rank(rule)
    start, stop = piece_bounds(shape[source.divided], rank, ranks, padded=rule.padded)
    return weights.read(source.name, source.divided, start, stop)


def _tensor_rank(rule: Rule) -> tuple[int, int]:
    if rule.expert is None:
        return (
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.get_tensor_model_parallel_world_size(),
        )
    return (
        parallel_state.get_expert_tensor_parallel_rank(),
        parallel_state.get_expert_tensor_parallel_world_size(),
    )


def _spread(
    tensors: PartTensors, rule: Rule, source: Source, piece: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The whole tensor in every process, from the pieces of those that have them."""
    whole = None if piece is None else _joined(rule, source, piece)
    stage, _ = tensors.stage(rule)
    expert = tensors.expert_rank(rule)
    device = torch.cuda.current_device()
    if whole is None:
        whole = torch.empty(source.shape, dtype=dtype, device=device)
    if expert is not None and stage == parallel_state.get_pipeline_model_parallel_rank():
        _broadcast(whole, expert, parallel_state.get_expert_model_parallel_group())
    _broadcast(whole, stage, parallel_state.get_pipeline_model_parallel_group())
    return whole


def _joined(rule: Rule, source: Source, piece: Tensor) -> Tensor:
    """The pieces of all tensor-parallel processes as one tensor."""
    _, ranks = _tensor_rank(rule)
    if source.divided is None:
        return piece.clone()
    expert = rule.expert is not None
    group = (
        parallel_state.get_expert_tensor_parallel_group()
        if expert
        else parallel_state.get_tensor_model_parallel_group()
    )
    own = piece.contiguous()
    pieces = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(pieces, own, group=group)
    return torch.cat(pieces, dim=source.divided).narrow(0, 0, source.shape[0]).contiguous()


def _broadcast(tensor: Tensor, rank: int, group: dist.ProcessGroup) -> None:
    if dist.get_world_size(group) > 1:
        dist.broadcast(tensor, src=dist.get_global_rank(group, rank), group=group)
