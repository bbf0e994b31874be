"""Policy gradients with a weight: -weight x A x log pi, the weight being a constant in the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_learners.losses.policy import PolicyLoss
from roll_learners.losses.ratio import bounded_ratio, sequence_product
from roll_learners.segments import Segments


def policy_gradient(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
    """-A log pi.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N], for the metrics alone.
        advantages: [N].

    Source: Williams, "Simple statistical gradient-following algorithms", 1992.
    """
    return _weighted(logprobs, old_logprobs, advantages, torch.ones_like(advantages))


def importance_gradient(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
    """-r A with the gradient through the ratio, which nothing clips.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
    """
    ratio = bounded_ratio(logprobs - old_logprobs)
    return PolicyLoss(
        losses=-ratio * advantages,
        ratio=ratio.detach(),
        clipped=torch.zeros_like(advantages, dtype=torch.bool),
    )


def truncated_gradient(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, weight_high: float = 1.0
) -> PolicyLoss:
    """-min(r, weight_high) A log pi, token by token.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        weight_high: Above 0.

    Source: the variant "tis" of ROLL.
    """
    ratio = bounded_ratio(logprobs.detach() - old_logprobs)
    return _weighted(logprobs, old_logprobs, advantages, ratio.clamp(max=weight_high), ratio)


def topr(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    segments: Segments,
    *,
    weight_high: float = 1.0,
) -> PolicyLoss:
    """-w A log pi; w is 1 where A > 0 and else the ratio of the whole response, at most weight_high.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N]; the paper's are rewards of 1 and -1 without a baseline (`raw_reward`).
        segments: Of the N tokens; sequences are whole.
        weight_high: Above 0.

    Source: TOPR, arXiv 2503.14286, eq. 7 and 8.
    """
    ratio = segments.spread(sequence_product(logprobs.detach() - old_logprobs, segments))
    weight = torch.where(advantages > 0, 1.0, ratio.clamp(max=weight_high))
    return _weighted(logprobs, old_logprobs, advantages, weight, torch.where(advantages > 0, 1.0, ratio))


def topr_token(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, weight_high: float = 1.0
) -> PolicyLoss:
    """As `topr`, with the ratio of each token in place of that of the response.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        weight_high: Above 0.

    Source: the variant "topr" of ROLL.
    """
    ratio = bounded_ratio(logprobs.detach() - old_logprobs)
    weight = torch.where(advantages > 0, 1.0, ratio.clamp(max=weight_high))
    return _weighted(logprobs, old_logprobs, advantages, weight, torch.where(advantages > 0, 1.0, ratio))


def kimi(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, tau: float) -> PolicyLoss:
    """-A log pi + tau/2 (log r)^2: a pull towards the policy the step began with.

    Args:
        logprobs: [N], with gradient.
        old_logprobs: [N].
        advantages: [N].
        tau: Weight of the pull, at least 0.

    Source: Kimi k1.5, arXiv 2501.12599, eq. 3.
    Differs: The square is of each token's log-ratio, as in ROLL; the paper's is of the response's.
    """
    loss = policy_gradient(logprobs, old_logprobs, advantages)
    return loss._replace(losses=loss.losses + tau / 2 * (logprobs - old_logprobs).square())


def _weighted(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weight: Tensor, free: Tensor | None = None
) -> PolicyLoss:
    """The loss of a weight whose unbounded value is `free`, or which nothing bounds."""
    return PolicyLoss(
        losses=-weight * advantages * logprobs,
        ratio=bounded_ratio(logprobs.detach() - old_logprobs),
        clipped=torch.zeros_like(weight, dtype=torch.bool) if free is None else weight != free,
    )
