"""The gradient of one mini-batch, summed over micro-batches; every learner's update begins with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.batch import Column, MicroBatch, check_columns, gather_column
from roll_learners.metrics import MetricTally
from roll_learners.objective import Objective, TokenBatch
from roll_learners.sample import Sample
from roll_learners.scoring import LocalScorer
from roll_learners.segments import Totals


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
    scorer: LocalScorer,
    samples: Sequence[Sample],
    objective: Objective,
    columns: Mapping[str, Column],
    *,
    totals: Totals,
) -> Accumulated:
    """Adds the gradient of the objective's loss over these samples to the parameters' gradients.

    Args:
        scorer: Runs the model.
        samples: The mini-batch.
        objective: Turns log-probs into a loss.
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
    for batch in scorer.batches(samples):
        scores = scorer.score(batch, entropy=objective.entropy)
        terms = objective.terms(
            TokenBatch(
                logprobs=scores.logprobs,
                entropy=scores.entropy,
                segments=batch.segments,
                totals=totals,
                columns=_gathered(columns, samples, batch, scorer),
            )
        )
        torch.autograd.backward(terms.loss)
        losses.append(terms.loss.detach())
        members.append(batch.members)
        tally.add(terms.metrics)
        tokens += len(batch.targets)
    shares = torch.stack(losses) if losses else torch.zeros(0)
    return Accumulated(losses=shares, members=members, tokens=tokens, tally=tally)


def _gathered(
    columns: Mapping[str, Column], samples: Sequence[Sample], batch: MicroBatch, scorer: LocalScorer
) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(
            gather_column(name, column, samples, batch.members).astype(scorer.dtype, copy=False)
        ).to(scorer.device)
        for name, column in columns.items()
    }
