"""Advantages that compare a completion with the others of its prompt.

Members are found by group id, wherever they stand. A NaN reward is no verdict: it takes no part in
any statistic and its advantage is 0. A group whose rewards are all equal, or that has one member
with a verdict, gets exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.segments import Segments


def grpo(rewards: Tensor, groups: Tensor, *, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """[S], (reward - group mean) / (group standard deviation + eps).

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S], any ids.
        eps: Added to the deviation.
        ddof: 1 for the sample deviation (n - 1), 0 for that of the population.

    Source: arXiv 2402.03300, section 4.1.2.
    """
    centred, index, counts = _centred(rewards, groups)
    squares = counts.new_zeros(len(counts)).index_add(0, index, centred.square())
    deviation = (squares / (counts - ddof).clamp(min=1)).sqrt() + eps
    # A group without a spread has 0 above; it has 0 below too where eps is 0.
    return centred / deviation.masked_fill(deviation == 0, 1.0)[index]


def dr_grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], reward - group mean, not divided by a deviation.

    Whitened over all tokens of the batch (`whiten`) it is the REINFORCE++ baseline.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].

    Source: arXiv 2503.20783, eq. 3; with whitening arXiv 2501.03262.
    """
    return _centred(rewards, groups).values


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], reward - mean of the other members.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].

    Source: arXiv 2402.14740, eq. 8.
    """
    centred, index, counts = _centred(rewards, groups)
    return centred * (counts / (counts - 1).clamp(min=1))[index]


def gpg(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], (reward - group mean) x S / (S - M), with M samples in groups whose rewards are all equal.

    The factor gives a batch in which few groups say something the gradient of one in which all do.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].

    Source: GPG, arXiv 2504.02546, eq. 5 and 6.
    Differs: verl counts samples whose reward is 0, not those in groups without a spread.
    """
    known = ~rewards.isnan()
    ids, index = torch.unique(groups[known], return_inverse=True)
    spread = _ranges(rewards[known], index, len(ids)) > 0
    informative = int(spread[index].sum())
    return dr_grpo(rewards, groups) * (int(known.sum()) / max(1, informative))


def opo(rewards: Tensor, groups: Tensor, segments: Segments) -> Tensor:
    """[S], reward - the mean reward of the group in which each member weighs as many times as it has tokens.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].
        segments: Of the tokens of the S responses.

    Source: OPO, arXiv 2505.23585, eq. 6.
    """
    ids, index = torch.unique(groups, return_inverse=True)
    known = ~rewards.isnan()
    lengths = torch.where(known, segments.lengths.to(rewards.dtype), 0.0)
    clean = torch.where(known, rewards, 0.0)
    sums = rewards.new_zeros(len(ids)).index_add(0, index, clean * lengths)
    weights = rewards.new_zeros(len(ids)).index_add(0, index, lengths)
    baseline = (sums / weights.clamp(min=1))[index]
    spread = _ranges(rewards[known], index[known], len(ids)) > 0
    return torch.where(known & spread[index], clean - baseline, 0.0)


def batch_normalised(rewards: Tensor, *, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """[S], (reward - mean) / (standard deviation + eps) over all rewards of the batch.

    Args:
        rewards: [S], NaN for no verdict.
        eps: Added to the deviation.
        ddof: As in `grpo`.

    Source: REINFORCE++ on sequence rewards, arXiv 2501.03262, section 3.2.
    """
    return grpo(rewards, torch.zeros(len(rewards), dtype=torch.int64), eps=eps, ddof=ddof)


def lite_ppo(rewards: Tensor, groups: Tensor, *, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """[S], (reward - group mean) / (standard deviation of all rewards of the batch + eps).

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].
        eps: Added to the deviation.
        ddof: As in `grpo`.

    Source: arXiv 2508.08221, section 4.
    """
    known = rewards[~rewards.isnan()]
    variance = (known - known.mean()).square().sum() / max(1, len(known) - ddof)
    return _centred(rewards, groups).values / (variance.sqrt() + eps)


def whiten(values: Tensor, *, eps: float = 1e-8, ddof: int = 1) -> Tensor:
    """[N], (values - mean) / sqrt(variance + eps); all 0 for fewer than two values.

    Args:
        values: [N], flat tokens; masked ones are not among them.
        eps: Added to the variance.
        ddof: As in `grpo`.
    """
    if len(values) < 2:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.var(correction=ddof) + eps).sqrt()


def zero_spread(rewards: Tensor, groups: Tensor) -> Tensor:
    """bool[P], for each group with a verdict whether all its rewards are equal; sorted by group id."""
    known = ~rewards.isnan()
    if not known.any():
        return torch.zeros(0, dtype=torch.bool)
    ids, index = torch.unique(groups[known], return_inverse=True)
    return _ranges(rewards[known], index, len(ids)) == 0


class _Centred(NamedTuple):
    values: Tensor  # [S], reward - group mean; exactly 0 without a verdict or a spread
    places: Tensor  # int64[S], the position of each sample's group in counts
    counts: Tensor  # [P], members with a verdict


def _centred(rewards: Tensor, groups: Tensor) -> _Centred:
    ids, index = torch.unique(groups, return_inverse=True)
    known = ~rewards.isnan()
    clean = torch.where(known, rewards, 0.0)
    counts = rewards.new_zeros(len(ids)).index_add(0, index, known.to(rewards.dtype))
    means = rewards.new_zeros(len(ids)).index_add(0, index, clean) / counts.clamp(min=1)
    # The mean of equal numbers can differ from them in the last bit: equal rewards are told apart
    # by their range, so that their advantage is 0 and not a rounding error over eps.
    spread = _ranges(rewards[known], index[known], len(ids)) > 0
    values = torch.where(known & spread[index], clean - means[index], 0.0)
    return _Centred(values=values, places=index, counts=counts)


def _ranges(rewards: Tensor, index: Tensor, groups: int) -> Tensor:
    empty = rewards.new_zeros(groups)
    highest = empty.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return highest - empty.scatter_reduce(0, index, rewards, "amin", include_self=False)
