"""The learner of many processes: the same objectives, steps and updates as `LocalLearner`, on shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from roll_learners.batch import Column, check_columns, gather_column
from roll_learners.errors import LearnerError
from roll_learners.fsdp2.export import hugging_face_names, write_hugging_face
from roll_learners.fsdp2.layout import Sharding
from roll_learners.fsdp2.norm import gradient_norm
from roll_learners.fsdp2.scorer import Fsdp2Scorer
from roll_learners.fsdp2.sharding import local, unpacked, whole
from roll_learners.gradient import Accumulated, accumulate_gradient
from roll_learners.local_model import LocalModel
from roll_learners.metrics import MetricTally
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.segments import Totals

MOMENTS = ("exp_avg", "exp_avg_sq")


class Fsdp2Learner(LocalModel[Objective]):
    """AdamW over shards. SPMD: every rank of the process group makes one and calls each method with the same
    arguments, the whole batch among them; each computes its share, and all return the same.

    What a rank raises for its arguments all ranks raise. A rank that fails alone (out of memory, killed)
    leaves the others waiting until the process group's timeout, or until whoever started them ends them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        sharding: Sharding,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """Args:
        model: On the host, with the same values on every rank. It is sharded in place.
        sharding: The layout, and how it is computed.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most padded tokens in one pass of a rank.
        temperature: The one that completions are sampled with; 1 for demonstrations.
        device: This rank's.

        Raises:
            LearnerError: A setting is out of range, the layout does not fit the model or the process group,
                or the model's logits are not supported.
        """
        self._scorer = Fsdp2Scorer(
            model,
            sharding=sharding,
            micro_batch_tokens=micro_batch_tokens,
            temperature=temperature,
            device=device,
        )
        super().__init__(model, self._scorer, optimizer, master_weights=False)
        self._adamw = _adamw(self._parameters, optimizer)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights; see `LocalScorer.logprobs`."""
        return self._scorer.logprobs(samples)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole tensor of all that `save_pretrained` would write, tied tensors once, one at a time.

        All ranks iterate together; each is given every tensor, and keeps none. Names are those of the
        model's state dict, which for dense models are its checkpoint's.
        """
        for name, tensor in self._shards():
            yield name, whole(tensor)

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model alone, file by file; all ranks call it.

        Names are those of the checkpoint, where an expert's matrices are apart.
        """
        tensors = hugging_face_names(self.model, self.export_weights())
        write_hugging_face(self.model, tensors, Path(directory), write=dist.get_rank() == 0)
        dist.barrier()

    def sharded_state(self) -> dict[str, Any]:
        """Weights, optimizer and updates by names that hold for every layout, for
        `roll_learners.fsdp2.save_checkpoint` and `load_checkpoint`. All ranks call it. Tensors are the live
        shards, but for copies of those that are packed."""
        names, packed = self._names(), self._packed()
        state: dict[str, Any] = {"model": {}, **{moment: {} for moment in MOMENTS}, "updates": self.updates}
        for name, tensor in self._shards():
            state["model"][name] = unpacked(tensor) if name in packed else tensor
        for moment in MOMENTS:
            for parameter in self._parameters:
                name, tensor = names[parameter], self._moment(parameter, moment)
                state[moment][name] = unpacked(tensor) if name in packed else tensor
        return state

    def take_sharded_state(self, state: Mapping[str, Any]) -> None:
        """Called once a checkpoint filled the tensors of `sharded_state`."""
        self.updates = int(state["updates"])
        shards, names = dict(self._shards()), self._names()
        for parameter in self._parameters:
            name = names[parameter]
            self._adamw.state[parameter]["step"].fill_(self.updates)
            if name in self._packed():
                _repack(state["model"][name], shards[name])
                for moment in MOMENTS:
                    _repack(state[moment][name], self._moment(parameter, moment))
        self._scorer.root.reshard()  # type: ignore[operator]  # of FSDPModule

    def state_dict(self) -> dict[str, Any]:
        """Not there: raises LearnerError. The state is in shards, which `save_checkpoint` writes."""
        raise LearnerError(
            "the state of an Fsdp2Learner is in shards: use roll_learners.fsdp2.save_checkpoint"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Not there: raises LearnerError. See `roll_learners.fsdp2.load_checkpoint`."""
        raise LearnerError(
            "the state of an Fsdp2Learner is in shards: use roll_learners.fsdp2.load_checkpoint"
        )

    def _move(self, device: str, *, optimizer: bool, parameters: bool) -> int:
        """Nothing: FSDP2 keeps each part where it is."""
        return 0

    def _shards(self) -> Iterator[tuple[str, Tensor]]:
        """Names of the model's state dict and what this rank holds, tied tensors once."""
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor.detach()

    def _packed(self) -> set[str]:
        names = self._names()
        return {names[parameter] for parameter in self._scorer.sharded.packed}

    def _names(self) -> dict[torch.nn.Parameter, str]:
        return {parameter: name for name, parameter in self.model.named_parameters()}

    def _moment(self, parameter: torch.nn.Parameter, moment: str) -> Tensor:
        state = self._adamw.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, device=local(parameter).device)
            state |= {each: torch.zeros_like(parameter, requires_grad=False) for each in MOMENTS}
        tensor: Tensor = state[moment]
        return tensor

    def _gradient(
        self,
        samples: Sequence[Sample],
        objective: Objective,
        columns: Mapping[str, Column],
        totals: Totals,
    ) -> tuple[Accumulated, Tensor]:
        """As in one process, of all ranks together."""
        check_columns(columns, samples)
        for name, column in columns.items():  # on every rank all of it, so that all raise or none
            if len(samples):
                gather_column(name, column, samples, np.arange(len(samples)))
        self._adamw.zero_grad()
        own = accumulate_gradient(self._scorer, samples, objective, columns, totals=totals)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._scorer.meshes.tensor is not None:
            group = self._scorer.meshes.tensor.get_group()
            names = {id(parameter) for parameter in self._scorer.sharded.partial}
            for parameter in self._parameters:
                if id(parameter) in names and parameter.grad is not None:
                    dist.all_reduce(local(parameter.grad), group=group)
        return self._merged(own), gradient_norm([p.grad for p in self._parameters if p.grad is not None])

    def _merged(self, own: Accumulated) -> Accumulated:
        """What all shares have accumulated."""
        metrics = {
            name: metric._replace(values=metric.values.cpu()) for name, metric in own.tally.metrics().items()
        }
        tally, losses, members, tokens = MetricTally(), [], [], 0
        for part in self._scorer.gathered((own.losses.cpu(), own.members, own.tokens, metrics)):
            shares, places, count, theirs = part
            losses.append(shares)
            members += places
            tokens += count
            tally.add(theirs)
        return Accumulated(losses=torch.cat(losses), members=members, tokens=tokens, tally=tally)

    def _clip(self, norm: Tensor, longest: float) -> None:
        scale = min(1.0, longest / (norm.item() + 1e-6))
        gradients = [local(p.grad) for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(gradients, scale)


def _repack(tensor: Tensor, target: Tensor) -> None:
    """Copies a whole packed parameter, in shards, into the part that this tensor rank holds."""
    if isinstance(tensor, DTensor) and isinstance(target, DTensor):
        local(target).copy_(local(tensor.redistribute(placements=target.placements)))


def _adamw(parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    """A group for each mesh, since one call takes tensors of one; in it matrices, which decay, and others."""
    groups: dict[tuple[object, bool], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((mesh, parameter.ndim >= 2), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": members, "weight_decay": settings.weight_decay if matrix else 0.0}
            for (_, matrix), members in groups.items()
        ],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )
