"""Policy gradients over interaction chunks: the turns between two answers of an environment.

Source: IPA ("Let It Flow", ROME), arXiv 2512.24873, eq. 4 to 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.losses.policy import PolicyLoss
from roll_learners.losses.ratio import bounded_ratio, sequence_ratio
from roll_learners.segments import Segments, Turns


def ipa_chunk(
    logprobs: Tensor,
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    turns: Turns,
    expert: Tensor | None = None,
    *,
    mismatch_high: float,
    imitation_coef: float = 1.0,
    rl_coef: float = 1.0,
) -> PolicyLoss:
    """-w A log pi, by chunk: w is 1 where A > 0, else the chunk's ratio, at most 1.

    w is 0 for a chunk that the engine found too improbable beside the learner: whose ratio learner over
    engine is above mismatch_high. Ratios of a chunk are geometric means. Tokens of experts are imitated:
    their w is imitation_coef.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        behavior_logprobs: [N], NaN for unknown, which counts as equal to old_logprobs.
        advantages: [N], the returns of the chunks.
        turns: Of the N tokens; turns are whole.
        expert: [N], above 0 for tokens of a demonstration; None for none.
        mismatch_high: At least 1; the paper leaves it open.
        imitation_coef: Weight of the imitation; the paper leaves it open.
        rl_coef: Weight of all other tokens.

    Source: eq. 9, and eq. 10 for the hybrid of imitation and reinforcement.
    Differs: The factor before the expert's gradient in eq. 10 is read as a sampling weight, so it is 1.
    """
    loss = _weighted(
        logprobs, old_logprobs, behavior_logprobs, advantages, turns.tokens, turns.tokens, mismatch_high
    )
    if expert is None:
        return loss._replace(losses=rl_coef * loss.losses)
    imitated = -imitation_coef * advantages * logprobs
    return loss._replace(
        losses=torch.where(expert > 0, imitated, rl_coef * loss.losses),
        clipped=loss.clipped & ~(expert > 0),
    )


def ipa_trajectory(
    logprobs: Tensor,
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    segments: Segments,
    *,
    mismatch_high: float,
) -> PolicyLoss:
    """The baseline of `ipa_chunk`: the ratio is that of the trajectory, the mask that of each token.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        behavior_logprobs: [N], NaN for unknown, which counts as equal to old_logprobs.
        advantages: [N].
        segments: Of the N tokens; sequences are whole.
        mismatch_high: At least 1.

    Source: eq. 4 to 6.
    """
    each = Segments.of_lengths(torch.ones_like(segments.ids))
    return _weighted(logprobs, old_logprobs, behavior_logprobs, advantages, segments, each, mismatch_high)


def _weighted(
    logprobs: Tensor,
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    advantages: Tensor,
    ratios: Segments,
    masks: Segments,
    mismatch_high: float,
) -> PolicyLoss:
    """The loss with a ratio for each segment of `ratios` and a mask for each segment of `masks`."""
    gap = torch.where(behavior_logprobs.isfinite(), old_logprobs - behavior_logprobs, 0.0)
    kept = masks.spread(sequence_ratio(gap, masks)) <= mismatch_high
    log_ratios = logprobs.detach() - old_logprobs
    ratio = ratios.spread(sequence_ratio(log_ratios, ratios))
    weight = torch.where(advantages > 0, 1.0, ratio.clamp(max=1.0)) * kept
    return PolicyLoss(
        losses=-weight * advantages * logprobs,
        ratio=bounded_ratio(log_ratios),
        clipped=~kept | ((advantages <= 0) & (ratio > 1)),
    )
