"""Policy-gradient losses of single tokens.

All take flat response tokens: `logprobs` now, `old_logprobs` at the weights with which the training
step began, `advantages`; and return one loss a token, to be summed by `aggregation`. Where the
advantage is 0, loss and gradient are exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.losses.ratio import bounded_ratio, sequence_ratio
from roll_learners.segments import Segments, Turns


class PolicyLoss(NamedTuple):
    """Attributes:
    losses: [N], with gradient.
    ratio: [N], policy now / policy at the start of the step, without gradient.
    clipped: bool[N], tokens whose loss a bound has changed.
    """

    losses: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), at most dual_clip |A| where A < 0.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        clip_low: 0 to 1.
        clip_high: At least 0; above clip_low it is DAPO's clip-higher.
        dual_clip: Above 1, or None for no second bound.

    Source: PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5; DAPO, arXiv 2503.14476.
    """
    return _surrogate(bounded_ratio(logprobs - old_logprobs), advantages, clip_low, clip_high, dual_clip)


def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """The clipped surrogate of the sequence ratio, the same for all tokens of a sequence.

    Aggregated by `seq_mean_token_mean` this is the paper's objective, and every token of a sequence
    gets the same gradient.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        segments: Of the N tokens; sequences are whole.
        clip_low: The paper's value is 3e-4.
        clip_high: The paper's value is 4e-4.

    Source: arXiv 2507.18071, eq. 5 to 7.
    """
    ratio = segments.spread(sequence_ratio(logprobs - old_logprobs, segments))
    return _surrogate(ratio, advantages, clip_low, clip_high, None)


def turn_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    turns: Turns,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """The clipped surrogate of each turn's ratio, the geometric mean of the ratios of its tokens.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        turns: Of the N tokens; turns are whole.
        clip_low: 0 to 1.
        clip_high: At least 0.
        dual_clip: As in `clipped_surrogate`.

    Source: IPA (ROME), arXiv 2512.24873, eq. 8, the ratio of an interaction chunk.
    """
    ratio = turns.tokens.spread(sequence_ratio(logprobs - old_logprobs, turns.tokens))
    return _surrogate(ratio, advantages, clip_low, clip_high, dual_clip)


def cispo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> PolicyLoss:
    """-clip(r, 1 - clip_low, 1 + clip_high) A log pi, the clipped ratio being a constant weight.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        clip_low: 1 switches the lower bound off, as the paper does.
        clip_high: At least 0.

    Source: MiniMax-M1, arXiv 2506.13585, eq. 4 and 5.
    Differs: TRL's epsilon_high is the cap itself, 1 + clip_high here.
    """
    ratio = bounded_ratio(logprobs.detach() - old_logprobs)
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(losses=-weight * advantages * logprobs, ratio=ratio, clipped=weight != ratio)


def _surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> PolicyLoss:
    free = -ratio * advantages
    losses = torch.maximum(free, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    return PolicyLoss(losses=losses, ratio=ratio.detach(), clipped=losses.detach() != free.detach())
