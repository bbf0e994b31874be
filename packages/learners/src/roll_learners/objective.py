"""What turns log-probs of trained tokens into a loss; a learner runs any of them.

One objective for each kind of training: `PolicyObjective` for every policy-gradient algorithm,
`SupervisedObjective` for demonstrations, `SequenceObjective` for losses of whole responses,
`DistillationObjective` for a teacher's distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from roll_learners.forward import EntropyUse, LogitsTerm
from roll_learners.registry import AGGREGATIONS
from roll_learners.segments import Segments, Totals

Reduction = Literal["sum", "mean", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What an objective sees of a micro-batch: N trained tokens of S sequences.

    Attributes:
        logprobs: [N], with gradient.
        entropy: [N], or None if the objective asks for none.
        segments: Of the N tokens.
        totals: Denominators of the whole mini-batch.
        columns: [N] each; what the caller of `update` passed, and "behavior_logprobs" where all samples
            have them.
        from_logits: [N], what the objective's `logits_term` made, or None if it has none.
    """

    logprobs: Tensor
    entropy: Tensor | None
    segments: Segments
    totals: Totals
    columns: Mapping[str, Tensor]
    from_logits: Tensor | None = None


class Metric(NamedTuple):
    """Attributes:
    values: Any shape; without gradient.
    reduction: Over the micro-batches of an update: "sum"; "mean" over all values; or "spread", which
        gives mean, max and std under the suffixes _mean, _max and _std.
    """

    values: Tensor
    reduction: Reduction


class Terms(NamedTuple):
    """Attributes:
    loss: Scalar, this micro-batch's share of the mini-batch's loss.
    metrics: By name; a name without "/" gets a prefix from the step that runs the update.
    """

    loss: Tensor
    metrics: Mapping[str, Metric]


class Objective(Protocol):
    """Turns one micro-batch into its share of a loss that is the same for every split."""

    @property
    def entropy(self) -> EntropyUse:
        """Whether `TokenBatch.entropy` is needed, and with gradient."""
        ...

    @property
    def logits_term(self) -> LogitsTerm | None:
        """What makes `TokenBatch.from_logits` while the logits exist, or None."""
        ...

    def terms(self, tokens: TokenBatch) -> Terms:
        """The loss and metrics of a micro-batch. Depends on its arguments alone."""
        ...


@runtime_checkable
class LinearObjective(Protocol):
    """An objective whose loss is linear in the log-probs, so that a learner may make gradients at once."""

    def slopes(
        self, like: Tensor, segments: Segments, totals: Totals, columns: Mapping[str, Tensor]
    ) -> Tensor:
        """[N], the derivative of the loss by each log-prob, whatever these are; of the dtype of `like`."""
        ...


class SupervisedObjective:
    """The negative log-likelihood of the trained tokens."""

    entropy: EntropyUse = "none"
    logits_term: LogitsTerm | None = None

    def __init__(self, aggregation: str = "token_mean") -> None:
        """Args:
        aggregation: A name in `AGGREGATIONS` without a parameter: by "token_mean" every token weighs the
            same, by "seq_mean_token_mean" every sample.

        Raises:
            LearnerError: The name is unknown.
        """
        self._aggregate = AGGREGATIONS.bind(aggregation, {})

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`."""
        loss: Tensor = self._aggregate(
            losses=-tokens.logprobs, segments=tokens.segments, totals=tokens.totals
        )
        return Terms(loss=loss, metrics={"nll": Metric(loss.detach(), "sum")})

    def slopes(
        self, like: Tensor, segments: Segments, totals: Totals, columns: Mapping[str, Tensor]
    ) -> Tensor:
        """See `LinearObjective`."""
        zeros = like.new_zeros(len(segments.ids), requires_grad=True)
        loss: Tensor = self._aggregate(losses=-zeros, segments=segments, totals=totals)
        (slopes,) = torch.autograd.grad(loss, zeros)
        return slopes
