"""Estimators that learn from the successes of a group; rewards are 0 for failure and above for success."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.advantages.group import dr_grpo
from roll_learners.errors import LearnerError


def maxrl(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], (reward - group mean) / group mean, 0 where the mean is 0.

    With rewards of 0 and 1 it is, up to the baseline, the gradient of the log-probability of success,
    so that prompts that are seldom solved weigh more.

    Args:
        rewards: [S], not negative, NaN for no verdict.
        groups: int64[S].

    Raises:
        LearnerError: A reward is negative, so that a mean of 0 would not mean failure.

    Source: MaxRL, arXiv 2602.02710, algorithm 1.
    """
    _check_not_negative("maxrl", rewards)
    means = _group_means(rewards, groups)
    return torch.where(means > 0, dr_grpo(rewards, groups) / means.masked_fill(means <= 0, 1.0), 0.0)


def raft_pp(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], 1 for the best members of a group and 0 for all others; a group without success has none.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].

    Source: arXiv 2504.11343, section 3.
    Differs: The best of a group counts only if its reward is above 0: an all-wrong group trains nothing.
    """
    clean = torch.nan_to_num(rewards, nan=-torch.inf)
    ids, index = torch.unique(groups, return_inverse=True)
    empty = torch.full((len(ids),), -torch.inf, dtype=rewards.dtype)
    best = empty.scatter_reduce(0, index, clean, "amax")[index]
    return ((clean == best) & (clean > 0)).to(rewards.dtype)


def _check_not_negative(name: str, rewards: Tensor) -> None:
    lowest = torch.nan_to_num(rewards, nan=0.0).min().item() if len(rewards) else 0.0
    if lowest < 0:
        raise LearnerError(f"{name}: the lowest reward is {lowest}: allowed are rewards of at least 0")


def _group_means(rewards: Tensor, groups: Tensor) -> Tensor:
    """[S], the mean reward of each sample's group over its members with a verdict, 0 for none."""
    ids, index = torch.unique(groups, return_inverse=True)
    known = (~rewards.isnan()).to(rewards.dtype)
    sums = rewards.new_zeros(len(ids)).index_add(0, index, torch.nan_to_num(rewards, nan=0.0))
    counts = rewards.new_zeros(len(ids)).index_add(0, index, known)
    return (sums / counts.clamp(min=1))[index]
