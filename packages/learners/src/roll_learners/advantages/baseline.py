"""Rewards less a baseline that is not made from the other members of a group, or less none."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.errors import LearnerError


def remax(rewards: Tensor, baselines: Tensor) -> Tensor:
    """[S], reward - the reward of the greedy completion of the same prompt; 0 without a verdict.

    Args:
        rewards: [S], NaN for no verdict.
        baselines: [S].

    Raises:
        LearnerError: A sample with a verdict has no baseline.

    Source: ReMax, arXiv 2310.10505, eq. 5.
    """
    missing = int((baselines.isnan() & ~rewards.isnan()).sum())
    if missing:
        raise LearnerError(
            f"remax: {missing} of {len(rewards)} samples have no baseline: set Sample.baseline to the "
            "reward of the greedy completion of its prompt"
        )
    return torch.nan_to_num(rewards - baselines, nan=0.0)


def raw_reward(rewards: Tensor) -> Tensor:
    """[S], the reward itself, 0 without a verdict; for losses that read its sign, such as `topr`.

    Args:
        rewards: [S], NaN for no verdict.
    """
    return torch.nan_to_num(rewards, nan=0.0)


def no_reward(rewards: Tensor) -> Tensor:
    """[S], zeros: all signal comes from elsewhere, such as the teachers of on-policy distillation.

    Args:
        rewards: [S].
    """
    return torch.zeros_like(rewards)
