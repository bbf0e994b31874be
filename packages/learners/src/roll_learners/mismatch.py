"""How far the engine's log-probs at sampling are from the learner's at the same weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
