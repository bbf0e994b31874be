"""The gradient of one mini-batch, summed over micro-batches; every learner's update begins with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.batch import Column, MicroBatch, check_columns, gather_column
from roll_learners.metrics import MetricTally
from roll_learners.objective import Terms
from roll_learners.sample import Sample
from roll_learners.segments import Totals

Target = TypeVar("Target", contravariant=True)
AnyTarget = TypeVar("AnyTarget")


class Runner(Protocol[Target]):
    """Runs a model on micro-batches, and an objective of the kind that fits it on what comes out."""

    @property
    def device(self) -> str:
        """Where tensors go."""
        ...

    @property
    def dtype(self) -> type[np.floating]:
        """Of columns."""
        ...

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """The micro-batches that hold each sample with a trained token once."""
        ...

    def terms(
        self, batch: MicroBatch, objective: Target, columns: Mapping[str, Tensor], totals: Totals
    ) -> Terms:
        """The objective's loss, with gradient, and metrics; columns[N, ...] are of the trained tokens."""
        ...


class Accumulated(NamedTuple):
    """What `accumulate_gradient` leaves besides the gradients.

    Attributes:
        losses: [M], each micro-batch's share of the loss; their sum is the mini-batch's.
        members: int64[S] each, the positions of the samples of each micro-batch.
        tokens: Trained tokens that were computed.
        tally: The objective's metrics.
    """

    losses: Tensor
    members: list[npt.NDArray[np.int64]]
    tokens: int
    tally: MetricTally


def accumulate_gradient(
    runner: Runner[AnyTarget],
    samples: Sequence[Sample],
    objective: AnyTarget,
    columns: Mapping[str, Column],
    *,
    totals: Totals,
) -> Accumulated:
    """Adds the gradient of the objective's loss over these samples to the parameters' gradients.

    Args:
        runner: Runs the model.
        samples: The mini-batch.
        objective: Turns what the model gives into a loss.
        columns: One entry for each sample in each.
        totals: Denominators of the whole mini-batch.

    Raises:
        LearnerError: A column does not fit, or a sample is longer than a micro-batch may be.
    """
    check_columns(columns, samples)
    behavior = [sample.behavior_logprobs for sample in samples if sample.behavior_logprobs is not None]
    if samples and len(behavior) == len(samples):
        columns = {"behavior_logprobs": behavior, **columns}
    tally, losses, members, tokens = MetricTally(), [], [], 0
    for batch in runner.batches(samples):
        gathered = {
            name: torch.from_numpy(
                gather_column(name, column, samples, batch.members).astype(runner.dtype, copy=False)
            ).to(runner.device)
            for name, column in columns.items()
        }
        terms = runner.terms(batch, objective, gathered, totals)
        torch.autograd.backward(terms.loss)
        losses.append(terms.loss.detach())
        members.append(batch.members)
        tally.add(terms.metrics)
        tokens += len(batch.targets)
    shares = torch.stack(losses) if losses else torch.zeros(0)
    return Accumulated(losses=shares, members=members, tokens=tokens, tally=tally)
