"""From token losses to one number: the four means in use, with denominators of the whole step.

Each returns this micro-batch's share; summed over micro-batches, and over ranks (or averaged, with
`Totals.ranks`), it is the loss of the mini-batch. A sequence without a trained token counts nowhere.
"""

from __future__ import annotations

from torch import Tensor

from roll_learners.segments import Segments, Totals


def token_mean(losses: Tensor, totals: Totals) -> Tensor:
    """The sum over tokens / all tokens; every token weighs the same.

    Args:
        losses: [N] of this micro-batch.
        totals: Of the whole mini-batch.

    Source: DAPO, arXiv 2503.14476, eq. 8.
    """
    return losses.sum() * (totals.ranks / max(1, totals.tokens))


def seq_mean_token_mean(losses: Tensor, segments: Segments, totals: Totals) -> Tensor:
    """The mean over sequences of each sequence's token mean; every sequence weighs the same.

    Source: GRPO, arXiv 2402.03300, eq. 3.
    """
    return segments.means(losses).sum() * (totals.ranks / max(1, totals.sequences))


def seq_mean_token_sum(losses: Tensor, totals: Totals) -> Tensor:
    """The mean over sequences of each sequence's token sum."""
    return losses.sum() * (totals.ranks / max(1, totals.sequences))


def constant_divisor(losses: Tensor, totals: Totals, *, horizon: int) -> Tensor:
    """The sum over tokens / (sequences x horizon); a token's weight depends on no length.

    Args:
        losses: [N] of this micro-batch.
        totals: Of the whole mini-batch.
        horizon: The constant in tokens, usually the response limit.

    Source: Dr. GRPO, arXiv 2503.20783, section 3.2.
    Differs: verl's seq-mean-token-sum-norm divides by the horizon alone, not by the sequences too.
    """
    return losses.sum() * (totals.ranks / (max(1, totals.sequences) * horizon))
