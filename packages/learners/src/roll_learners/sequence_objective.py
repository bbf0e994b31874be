"""Losses of whole responses, split over micro-batches as any other.

A loss that couples responses (the two of a preference pair, all of a batch) is not a sum over micro-batches.
So it is computed once from the log-probs (or scores) of all, with its derivative by each; the update then
uses, for each response, its share of the loss plus derivative x (log-prob - the same as a constant). Value
and gradient are exact, for every split and for every learner, at the cost of one forward without gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from roll_learners.forward import EntropyUse, LogitsTerm
from roll_learners.objective import Metric, Terms, TokenBatch
from roll_learners.segments import Segments, Totals


class SequenceObjective:
    """A loss of summed response log-probs. Columns, one number a sample: "share" and "slope"."""

    entropy: EntropyUse = "none"
    logits_term: LogitsTerm | None = None

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`."""
        return linear_terms(tokens.logprobs, tokens.segments, tokens.totals, tokens.columns)

    def slopes(
        self, like: Tensor, segments: Segments, totals: Totals, columns: Mapping[str, Tensor]
    ) -> Tensor:
        """See `roll_learners.objective.LinearObjective`."""
        return segments.spread(segments.means(columns["slope"])).to(like.dtype) * totals.ranks


def linear_terms(values: Tensor, segments: Segments, totals: Totals, columns: Mapping[str, Tensor]) -> Terms:
    """The sum over sequences of share + slope x (sum of values - the same as a constant).

    Args:
        values: [N], with gradient.
        segments: Of the N tokens.
        totals: Of the mini-batch; only `ranks` is used.
        columns: "share" and "slope", [N], equal over each sequence.
    """
    sums = segments.sums(values)
    share, slope = segments.means(columns["share"]), segments.means(columns["slope"])
    loss = (share + slope * (sums - sums.detach())).sum() * totals.ranks
    return Terms(loss=loss, metrics={"sequence_loss": Metric(share.sum(), "sum")})


def shares_and_slopes(losses: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """[S] each: the mean loss dealt equally over S responses, and its derivative by values[S].

    Args:
        losses: Any shape; their mean is the loss. They depend on `values`.
        values: [S], a leaf that requires a gradient.
    """
    loss = losses.mean()
    (slopes,) = torch.autograd.grad(loss, values)
    return (loss.detach() / len(values)).expand(len(values)), slopes
