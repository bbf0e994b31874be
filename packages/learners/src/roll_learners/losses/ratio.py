"""Ratios of probabilities, now over before, at the granularities that losses and corrections use."""

from __future__ import annotations

from torch import Tensor

from roll_learners.segments import Segments

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held inside +-20 before they are exponentiated, so that no ratio overflows float32."""


def bounded_ratio(log_ratios: Tensor) -> Tensor:
    """exp(log_ratios), of any shape, with the log-ratio held inside +-20."""
    return log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_ratio(log_ratios: Tensor, segments: Segments) -> Tensor:
    """[S], exp(the mean of a sequence's token log-ratios[N]): the geometric mean of its ratios.

    With the segments of turns (`Turns.tokens`) it is [K], one for each turn.
    """
    return bounded_ratio(segments.means(log_ratios))


def sequence_product(log_ratios: Tensor, segments: Segments) -> Tensor:
    """[S], exp(the sum of a sequence's token log-ratios[N]): the ratio of whole responses."""
    return bounded_ratio(segments.sums(log_ratios))
