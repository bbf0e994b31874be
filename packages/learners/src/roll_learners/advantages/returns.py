"""Rewards token by token, and the discounted sums of them that follow each token."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.segments import Segments


def token_rewards(
    scores: Tensor, segments: Segments, *, kl: Tensor | None = None, coef: float = 0.0
) -> Tensor:
    """[N], the score on each sequence's last token, less `coef` x the KL estimate of every token.

    Args:
        scores: [S], one a sequence; that of a sequence without a token is lost.
        segments: Of the N tokens.
        kl: [N], an estimate of KL(policy || reference) at each token, or None.
        coef: Weight of `kl`.

    Source: InstructGPT, arXiv 2203.02155, eq. 2.
    """
    held = segments.lengths > 0
    last = segments.lengths.cumsum(0)[held] - 1
    rewards = scores.new_zeros(len(segments.ids)).index_copy(0, last, scores[held])
    return rewards if kl is None else rewards - coef * kl


def reinforce(token_rewards: Tensor, segments: Segments, *, gamma: float = 1.0) -> Tensor:
    """[N], the discounted sum of the rewards from each token to the end of its sequence.

    Tokens of a sequence are the trained ones alone: what an environment wrote between them is
    stepped over without a discount.

    Args:
        token_rewards: [N].
        segments: Of the N tokens.
        gamma: Discount per token, 0 to 1.

    Source: REINFORCE++, arXiv 2501.03262, eq. 3.
    """
    return discounted_sums(token_rewards, segments, gamma)


def discounted_sums(values: Tensor, segments: Segments, factor: float) -> Tensor:
    """[N], y with y[t] = values[t] + factor * y[t + 1] inside each sequence."""
    padded, positions = _columns(values, segments)
    sums = torch.zeros_like(padded)
    carried = padded.new_zeros(len(padded))
    for t in range(padded.shape[1] - 1, -1, -1):
        carried = padded[:, t] + factor * carried
        sums[:, t] = carried
    return sums[segments.ids, positions]


def _columns(values: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Values as [S, longest], zeros on the right, and each token's int64[N] position in its row."""
    starts = segments.lengths.cumsum(0) - segments.lengths
    positions = torch.arange(len(values), device=values.device) - starts[segments.ids]
    longest = int(segments.lengths.max()) if len(segments.lengths) else 0
    padded = values.new_zeros(len(segments.lengths), longest)
    padded[segments.ids, positions] = values
    return padded, positions
