"""A trained model of Megatron-Core, the same in every process that holds a part of it.

`MegatronLearner` trains policies with it, `MegatronCritic` values.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PretrainedConfig

from roll_learners.batch import Column, total_counts
from roll_learners.culprits import culprits
from roll_learners.errors import LearnerError
from roll_learners.megatron.architecture import Architecture, read_architecture
from roll_learners.megatron.groups import Groups, make_groups
from roll_learners.megatron.layout import MegatronLayout
from roll_learners.megatron.model import DecoderModel, build_parts
from roll_learners.megatron.optimizer import ShardedAdamW, data_parallel
from roll_learners.megatron.passes import BatchOutcome, HeadRunner, Passes
from roll_learners.megatron.rules import Head
from roll_learners.megatron.transfer import PartTensors, export_weights, load_weights, save_pretrained
from roll_learners.megatron.weights import Weights
from roll_learners.metrics import MetricTally
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.segments import Totals
from roll_learners.update import SkippedUpdate, UpdateResult

logger = logging.getLogger(__name__)
Target = TypeVar("Target")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LoadedModel(NamedTuple):
    """This process's parts of a model with their weights.

    Attributes:
        model: The architecture.
        config: As it was read, for writing.
        groups: Of this process.
        parts: Chunks of this stage.
        head: What stands on the decoder.
    """

    model: Architecture
    config: PretrainedConfig
    groups: Groups
    parts: Sequence[DecoderModel]
    head: Head

    @staticmethod
    def load(weights: Weights, layout: MegatronLayout, *, head: Head, dtype: str, device: str) -> LoadedModel:
        """Builds and fills the parts.

        Args:
            weights: What is read.
            layout: How the model is spread.
            head: What stands on the decoder.
            dtype: "float32" or "bfloat16".
            device: A torch device.

        Raises:
            LearnerError: The family has no converter, the layout does not fit, a tensor is missing, or the
                library or the device is.
        """
        if dtype not in DTYPES:
            raise LearnerError(f"megatron: dtype is {dtype!r}: allowed are {', '.join(DTYPES)}")
        model = read_architecture(weights.config.to_dict())
        groups = make_groups(layout, model, device=device)
        parts = build_parts(model, groups, dtype=DTYPES[dtype], head=head)
        load_weights(PartTensors.of(model, layout, parts), weights, head)
        return LoadedModel(model, weights.config, groups, parts, head)

    def passes(self, parts: Sequence[torch.nn.Module], *, micro_batch_tokens: int, packing: bool) -> Passes:
        """How the model is run.

        Args:
            parts: These, or what wraps them.
            micro_batch_tokens: Most tokens of a micro-batch.
            packing: Rows are laid back to back.

        Raises:
            LearnerError: A setting is out of range, or does not go with the layout.
        """
        if micro_batch_tokens < 1:
            raise LearnerError(f"learner micro_batch_tokens is {micro_batch_tokens}: at least 1 is needed")
        if packing and self.groups.layout.context > 1:
            raise LearnerError(
                f"megatron: packing with context {self.groups.layout.context}: allowed is one of the two"
            )
        return Passes(
            parts=parts,
            groups=self.groups,
            model=self.model,
            micro_batch_tokens=micro_batch_tokens,
            packing=packing,
            dtype=np.float32,
        )

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and whole tensors; all processes iterate together."""
        return export_weights(PartTensors.of(self.model, self.groups.layout, self.parts), self.head)

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory; all processes call it, the first one writes."""
        save_pretrained(self.export_weights(), self.config, directory, writes=dist.get_rank() == 0)
        dist.barrier()


class _Gradient(NamedTuple):
    """Of a mini-batch, the same in all processes."""

    outcomes: list[BatchOutcome]
    norm: float

    @property
    def loss(self) -> float:
        return math.fsum(each.loss.item() for each in self.outcomes)

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.outcomes)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm) and all(torch.isfinite(each.loss).item() for each in self.outcomes)


class MegatronModel(Generic[Target]):
    """What learners and critics have in common; `Target` is the kind of objective.

    Every process of the group calls every method with the same arguments, and gets the same results. What one
    raises for its arguments all raise. A process that fails alone leaves the others waiting until they notice
    that it is gone, or until the process group's timeout.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        head: HeadRunner[Target],
        settings: OptimizerSettings,
        *,
        micro_batch_tokens: int,
        packing: bool,
    ) -> None:
        """Args:
        loaded: Trained in place.
        head: Runs what stands on the decoder.
        settings: Rates, clipping and schedule.
        micro_batch_tokens: Most tokens of a micro-batch.
        packing: Rows are laid back to back.

        Raises:
            LearnerError: A setting is out of range.
        """
        self.loaded = loaded
        self.settings = settings
        self.updates = 0
        self._head = head
        wrapped = data_parallel(loaded.parts, loaded.groups.layout)
        self.passes = loaded.passes(wrapped, micro_batch_tokens=micro_batch_tokens, packing=packing)
        self.adamw = ShardedAdamW(wrapped, settings, loaded.groups.layout)

    def update(
        self,
        samples: Sequence[Sample],
        objective: Target,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """One optimizer step on these samples; see `roll_learners.Learner.update`.

        Raises:
            LearnerError: A column does not fit, or a sample is longer than micro_batch_tokens.
        """
        counts = total_counts(samples) if totals is None else totals
        done = self._gradient(samples, objective, columns, counts)
        if not done.finite:

            def finite(members: Sequence[int]) -> bool:
                """Of some samples alone."""
                own = {name: _entries(column, members) for name, column in columns.items()}
                return self._gradient([samples[i] for i in members], objective, own, counts).finite

            named = range(len(samples)) if indices is None else indices
            skipped = self._skipped(done, culprits(_suspects(done), finite), named)
            self.adamw.zero()
            return UpdateResult(metrics={"skipped_steps": 1.0, "tokens": float(done.tokens)}, skipped=skipped)
        rate = self.adamw.step(done.norm, self.updates)
        self.updates += 1
        tally = MetricTally()
        for outcome in done.outcomes:
            tally.add(outcome.metrics)
        return UpdateResult(
            metrics={
                **tally.results(),
                "loss": done.loss,
                "grad_norm": done.norm,
                "lr": rate,
                "skipped_steps": 0.0,
                "tokens": float(done.tokens),
            }
        )

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and whole tensor, one after the other; all processes iterate together."""
        return self.loaded.export_weights()

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Writes a Hugging Face directory of the model alone; all processes call it."""
        self.loaded.save_pretrained(directory)

    def _gradient(
        self, samples: Sequence[Sample], objective: Target, columns: Mapping[str, Column], totals: Totals
    ) -> _Gradient:
        self.adamw.zero()
        # Gradients are summed over replicas, whatever the caller thinks of them.
        whole = totals._replace(ranks=1)
        own = self.passes.gradient(self._head, samples, objective, columns, whole)
        norm = self.adamw.norm()
        gathered = self.loaded.groups.gathered((own, norm))
        outcomes = [each for given, _ in gathered for each in given or ()]
        return _Gradient(outcomes, gathered[0][1])

    def _skipped(self, done: _Gradient, found: Sequence[int], names: Sequence[int]) -> SkippedUpdate:
        """The record of an update that is not finite."""
        bad = [each for each in done.outcomes if not torch.isfinite(each.loss)]
        skipped = SkippedUpdate(
            update=self.updates,
            what="loss" if bad else "gradient",
            samples=tuple(sorted(names[i] for i in found)),
            loss=sum(each.loss.item() for each in done.outcomes),
            gradient_norm=done.norm,
        )
        if dist.get_rank() == 0:
            logger.warning(
                "update %d skipped: %s is not finite in samples %s (loss %s, gradient norm %s)",
                skipped.update,
                skipped.what,
                list(skipped.samples),
                skipped.loss,
                skipped.gradient_norm,
            )
        return skipped


def _suspects(done: _Gradient) -> list[int]:
    """Samples of the micro-batches whose loss is not finite, or of all if each loss is finite."""
    bad = [each.members for each in done.outcomes if not torch.isfinite(each.loss)]
    members: list[int] = np.concatenate(bad or [each.members for each in done.outcomes]).tolist()
    return members


def _entries(column: Column, members: Sequence[int]) -> Column:
    return column[list(members)] if isinstance(column, np.ndarray) else [column[i] for i in members]
