"""What turns values into a critic's loss, and scores into a reward model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from roll_learners.aggregation import token_mean
from roll_learners.losses.value import value_loss
from roll_learners.objective import Metric, Terms
from roll_learners.segments import Segments, Totals
from roll_learners.sequence_objective import linear_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBatch:
    """What a critic's objective sees of a micro-batch: N trained tokens of S sequences.

    Attributes:
        values: [N], before each token, with gradient.
        segments: Of the N tokens.
        totals: Denominators of the whole mini-batch.
        columns: [N] each; what the caller of `update` passed.
    """

    values: Tensor
    segments: Segments
    totals: Totals
    columns: Mapping[str, Tensor]


class ValueTarget(Protocol):
    """Turns one micro-batch of values into its share of a loss that is the same for every split."""

    def terms(self, batch: ValueBatch) -> Terms:
        """The loss and metrics of a micro-batch. Depends on its arguments alone."""
        ...


class ValueObjective:
    """The token mean of the value loss. Columns: "returns", and "old_values" if there is a clip."""

    def __init__(self, *, clip: float | None = None, coef: float = 0.5) -> None:
        """Args:
        clip: See `roll_learners.value_loss`.
        coef: Weight of the squared error.
        """
        self._clip, self._coef = clip, coef

    def terms(self, batch: ValueBatch) -> Terms:
        """See `ValueTarget`."""
        returns = batch.columns["returns"]
        old = batch.values.detach() if self._clip is None else batch.columns["old_values"]
        losses = value_loss(batch.values, old, returns, clip=self._clip, coef=self._coef)
        loss = token_mean(losses, batch.totals)
        metrics = {
            "vf_loss": Metric(loss.detach(), "sum"),
            "vpred": Metric(batch.values.detach(), "mean"),
            "error": Metric((batch.values.detach() - returns).abs(), "mean"),
        }
        return Terms(loss=loss, metrics=metrics)


class ScoreObjective:
    """A loss of one score for each response. Columns, one number a sample: "share" and "slope"."""

    def terms(self, batch: ValueBatch) -> Terms:
        """See `ValueTarget`."""
        return linear_terms(batch.values, batch.segments, batch.totals, batch.columns)
