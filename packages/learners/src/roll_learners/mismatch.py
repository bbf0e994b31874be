"""How far the engine's log-probs at sampling are from the learner's at the same weights, and what corrects
for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.correction import Correction, Granularity
from roll_learners.errors import LearnerError
from roll_learners.losses.ratio import bounded_ratio, sequence_product, sequence_ratio
from roll_learners.segments import Segments, Turns


class ProbabilityGap(NamedTuple):
    """Attributes:
    gaps: [M], |p learner - p engine| of the tokens for which both are known, 0 to 1.
    missing: Tokens for which the engine returned no finite log-prob.
    """

    gaps: Tensor
    missing: int


def probability_gap(old_logprobs: Tensor, behavior_logprobs: Tensor) -> ProbabilityGap:
    """The gap of each token that has both log-probs, and the number of those that have not.

    Args:
        old_logprobs: [N], learner, at the weights that sampled.
        behavior_logprobs: [N], engine; NaN where it returned none.
    """
    known = behavior_logprobs.isfinite()
    with torch.no_grad():
        gaps = (old_logprobs[known].exp() - behavior_logprobs[known].exp()).abs()
    return ProbabilityGap(gaps=gaps, missing=int((~known).sum()))


class CorrectionWeights(NamedTuple):
    """Attributes:
    weights: [N], what the loss of each token is multiplied by; 0 where it is not kept.
    kept: bool[N], tokens that are not rejected.
    """

    weights: Tensor
    kept: Tensor


def mismatch_ratio(
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    granularity: Granularity,
    segments: Segments,
    turns: Turns | None = None,
) -> Tensor:
    """[N], p learner / p engine, of each token or of what it is part of; without gradient.

    A token without an engine's log-prob counts as equal.

    Args:
        old_logprobs: [N], learner, at the weights with which the step began.
        behavior_logprobs: [N], engine; NaN where it returned none.
        granularity: "token"; "turn" and "geometric" (sequence), geometric means; "sequence", the product.
        segments: Of the N tokens.
        turns: Of the N tokens; for "turn" alone.

    Raises:
        LearnerError: "turn" without turns, or a granularity that is none.
    """
    with torch.no_grad():
        gap = torch.where(behavior_logprobs.isfinite(), old_logprobs - behavior_logprobs, 0.0)
        if granularity == "token":
            return bounded_ratio(gap)
        if granularity == "geometric":
            return segments.spread(sequence_ratio(gap, segments))
        if granularity == "sequence":
            return segments.spread(sequence_product(gap, segments))
        if granularity == "turn" and turns is not None:
            return turns.tokens.spread(sequence_ratio(gap, turns.tokens))
    raise LearnerError(f"mismatch_ratio: granularity {granularity!r} with turns {turns}")


def correction_weights(
    old_logprobs: Tensor,
    behavior_logprobs: Tensor,
    correction: Correction,
    segments: Segments,
    turns: Turns | None = None,
) -> CorrectionWeights:
    """The weights of all tokens under a correction; constants, without gradient.

    Args:
        old_logprobs: [N], learner, at the weights with which the step began.
        behavior_logprobs: [N], engine; NaN where it returned none.
        correction: What is corrected.
        segments: Of the N tokens; sequences are whole.
        turns: Of the N tokens, if the correction looks at turns.

    Source: TIS, F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL training",
        2025; MIS and geometric rejection, J. Liu et al., "When speed kills stability", 2025; IcePop, Ring-1T,
        arXiv 2510.18855; decoupled PPO, arXiv 2110.00641.
    """

    def ratio(granularity: Granularity) -> Tensor:
        return mismatch_ratio(old_logprobs, behavior_logprobs, granularity, segments, turns)

    kept = torch.ones_like(old_logprobs, dtype=torch.bool)
    if correction.reject != "none":
        judged = ratio(correction.reject)
        kept &= judged >= correction.low
        if correction.high is not None:
            kept &= judged <= correction.high
    if correction.max_gap is not None:
        gap = (old_logprobs.detach().exp() - behavior_logprobs.exp()).abs()
        kept &= ~(gap > correction.max_gap)  # of an unknown log-prob the gap is NaN: kept
    weights = torch.ones_like(old_logprobs) if correction.weight == "none" else ratio(correction.weight)
    if correction.cap is not None:
        weights = weights.clamp(max=correction.cap)
    return CorrectionWeights(weights=torch.where(kept, weights, 0.0).detach(), kept=kept)
