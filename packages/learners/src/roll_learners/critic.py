"""A critic, or a reward model: a transformer with one number for each token in place of a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.batch import Column, MicroBatch, micro_batches, scatter_tokens
from roll_learners.compute import ComputeSettings
from roll_learners.errors import LearnerError
from roll_learners.execution import autocast, prepare_model
from roll_learners.forward import decoder_states
from roll_learners.local_model import LocalModel
from roll_learners.objective import Terms
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.segments import Totals
from roll_learners.update import UpdateResult
from roll_learners.value_objective import ValueBatch, ValueTarget


class Critic(Protocol):
    """What the training steps ask of a critic, whatever runs it."""

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The value before each trained token: an array [N] for each sample, 0 elsewhere."""
        ...

    def update(
        self,
        samples: Sequence[Sample],
        objective: ValueTarget,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """One optimizer step; arguments and result as of `roll_learners.Learner.update`."""
        ...


class LocalCritic(LocalModel[ValueTarget]):
    """A critic of one process and one device."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        device: str = "cpu",
        compute: ComputeSettings | None = None,
    ) -> None:
        """Args:
        model: With a backbone and a linear `score` of one output: transformers'
            `AutoModelForTokenClassification` or `AutoModelForSequenceClassification` with `num_labels=1`.
            It is moved to `device`, trained in place, and its dropout switched off.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most padded tokens in one pass.
        device: A torch device.
        compute: Precision and memory; None is the default of each. A critic's rows are not packed.

        Raises:
            LearnerError: A setting is out of range or not supported, or the model has not one output.
        """
        if micro_batch_tokens < 1:
            raise LearnerError(f"critic micro_batch_tokens is {micro_batch_tokens}: at least 1 is needed")
        settings = ComputeSettings() if compute is None else compute
        self._values = _ValueRunner(model, micro_batch_tokens, device, settings)
        super().__init__(model, self._values, optimizer, master_weights=settings.master_weights)

    def values(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The value before each trained token at the current weights, 0 elsewhere.

        Returns:
            float32[N] for each sample (float64 from a float64 model).
        """
        columns: list[npt.NDArray[np.floating]] = [
            np.zeros(len(sample.token_ids), self._values.dtype) for sample in samples
        ]
        for batch in self._values.batches(samples):
            with torch.no_grad():
                flat = self._values.values(batch).cpu().numpy()
            scored = scatter_tokens(flat, [samples[i] for i in batch.members])
            for i, column in zip(batch.members, scored, strict=True):
                columns[i] = column
        return columns

    def scores(self, samples: Sequence[Sample]) -> npt.NDArray[np.floating]:
        """[S], the value after the last token of each sample, as a reward model scores a response."""
        columns = self.values([ended(sample) for sample in samples])
        return np.array([column[-1] for column in columns], self._values.dtype)


def ended(sample: Sample) -> Sample:
    """The sample with a token behind its last, before which the value is that of the whole response."""
    length = len(sample.token_ids)
    return Sample(
        token_ids=np.concatenate([sample.token_ids, np.zeros(1, np.int32)]),
        response_mask=np.arange(length + 1) == length,
        reward=sample.reward,
        group=sample.group,
        tag=sample.tag,
    )


class _ValueRunner:
    """A `roll_learners.gradient.Runner` of values."""

    def __init__(
        self, model: PreTrainedModel, micro_batch_tokens: int, device: str, compute: ComputeSettings
    ) -> None:
        head = dict(model.named_children()).get("score")
        if not isinstance(head, torch.nn.Linear) or head.out_features != 1:
            raise LearnerError(
                f"LocalCritic: {type(model).__name__} has no linear `score` with one output: load it with "
                "AutoModelForTokenClassification.from_pretrained(..., num_labels=1)"
            )
        model.to(device).eval()  # type: ignore[arg-type]  # transformers types `to` for a bound module
        self.device = device
        self.dtype: type[np.floating] = np.float64 if model.dtype == torch.float64 else np.float32
        self._backbone: Any = model.base_model
        self._head = head
        self._compute = compute
        prepare_model(model, compute)
        self._micro_batch_tokens = micro_batch_tokens

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """Rows of one sample each."""
        return micro_batches(samples, budget=self._micro_batch_tokens, sharing=None, device=self.device)

    def values(self, batch: MicroBatch) -> Tensor:
        """[N], before each trained token."""
        with autocast(self._compute, self.device):
            values: Tensor = self._head(decoder_states(self._backbone, batch)).squeeze(-1)
        return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values

    def terms(
        self, batch: MicroBatch, objective: ValueTarget, columns: Mapping[str, Tensor], totals: Totals
    ) -> Terms:
        """The objective's loss and metrics of a micro-batch."""
        return objective.terms(
            ValueBatch(values=self.values(batch), segments=batch.segments, totals=totals, columns=columns)
        )
