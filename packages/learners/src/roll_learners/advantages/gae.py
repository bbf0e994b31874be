"""Generalised advantage estimation over flat response tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.advantages.returns import discounted_sums
from roll_learners.segments import Segments


class Gae(NamedTuple):
    """Attributes:
    advantages: [N].
    returns: [N], advantages + values, the targets of a critic.
    """

    advantages: Tensor
    returns: Tensor


def gae(
    token_rewards: Tensor,
    values: Tensor,
    segments: Segments,
    last_values: Tensor | None = None,
    *,
    gamma: float,
    lam: float,
) -> Gae:
    """Advantages and returns; the recursion goes from one trained token to the next.

    Tokens that an environment wrote are not among the N, so they are bridged: their rewards and
    values have no effect.

    Args:
        token_rewards: [N].
        values: [N], the critic's value before each token.
        segments: Of the N tokens.
        last_values: [S], the value after the last token of a sequence that was cut off rather than
            ended. None is 0 for all: every sequence ended.
        gamma: Discount, 0 to 1.
        lam: Weight of longer sums, 0 to 1.

    Source: arXiv 1506.02438, eq. 16.
    """
    ends = segments.lengths.cumsum(0) - 1
    held = segments.lengths > 0
    following = torch.cat([values[1:], values.new_zeros(min(1, len(values)))])
    after_end = values.new_zeros(len(segments.lengths)) if last_values is None else last_values
    following = following.index_copy(0, ends[held], after_end[held])
    deltas = token_rewards + gamma * following - values
    advantages = discounted_sums(deltas, segments, gamma * lam)
    return Gae(advantages=advantages, returns=advantages + values)
