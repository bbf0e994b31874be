"""Losses that bound a ratio in another way than PPO: by a soft gate, or inside a geometric mean."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.losses.policy import PolicyLoss
from roll_learners.losses.ratio import bounded_ratio, sequence_ratio
from roll_learners.segments import Segments


def sapo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, tau_positive: float, tau_negative: float
) -> PolicyLoss:
    """-(4 / tau) sigmoid(tau (r - 1)) A: a sigmoid in place of the clip, with slope 1 at r = 1.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        tau_positive: Sharpness where A > 0; the paper's value is 1.
        tau_negative: Sharpness elsewhere; the paper's value is 1.05.

    Source: SAPO, arXiv 2511.20347, eq. 5 and 6.
    """
    ratio = bounded_ratio(logprobs - old_logprobs)
    tau = torch.where(advantages > 0, tau_positive, tau_negative).to(ratio.dtype)
    gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
    return PolicyLoss(
        losses=-gate * advantages,
        ratio=ratio.detach(),
        clipped=torch.zeros_like(advantages, dtype=torch.bool),
    )


def gmpo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    segments: Segments,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """-A x the geometric mean of a response's ratios, each clipped on the side that A would push it to.

    Aggregated by `seq_mean_token_mean` this is the paper's objective.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N], one number for all tokens of a response.
        segments: Of the N tokens; sequences are whole.
        clip_low: The log-ratio is clipped below at -clip_low; the paper's value is 0.4.
        clip_high: The log-ratio is clipped above at clip_high; the paper's value is 0.4.

    Source: GMPO, arXiv 2507.20673, eq. 4.
    """
    log_ratios = logprobs - old_logprobs
    bounded = log_ratios.clamp(-clip_low, clip_high)
    chosen = torch.where(
        advantages >= 0, torch.minimum(log_ratios, bounded), torch.maximum(log_ratios, bounded)
    )
    mean = segments.spread(sequence_ratio(chosen, segments))
    return PolicyLoss(
        losses=-mean * advantages,
        ratio=bounded_ratio(log_ratios.detach()),
        clipped=(chosen != log_ratios).detach(),
    )
