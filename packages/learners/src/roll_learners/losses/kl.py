"""Estimates of KL(policy || reference) at tokens that the policy sampled.

With d = logprobs - ref_logprobs, k1 and k3 have the right mean; k2 has the right gradient in a loss.
Source: J. Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

from torch import Tensor

from roll_learners.losses.divergence import reverse_kl
from roll_learners.losses.ratio import bounded_ratio

LOG_RATIO_LIMIT = 20.0
"""The log-ratio is held inside +-20 before it is exponentiated: after would leave 0 * inf in the gradient."""

K3_LIMIT = 10.0
"""One token's k3 counts for at most this much, as in verl and ROLL; beyond it has no gradient."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """[N], d; unbiased, may be negative."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """[N], d^2 / 2; not negative."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """[N], exp(-d) + d - 1, at most 10; not negative, unbiased where the limit does not bind."""
    d = (logprobs - ref_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1 keeps the small values that exp(-d) - 1 would round away, also below 0.
    return ((-d).expm1() + d).clamp(0.0, K3_LIMIT)


def k3_importance(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """[N], ratio x k3: unbiased, also in its gradient, for tokens that the old policy sampled.

    Source: DeepSeek-V3.2, arXiv 2512.02556, section 3.1.
    """
    return bounded_ratio(logprobs - old_logprobs) * k3(logprobs, ref_logprobs)


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """[N], KL(policy || reference) over the whole vocabulary, exact: no estimate from one token.

    Args:
        logits: [N, V], with gradient.
        ref_logits: [N, V].
    """
    return reverse_kl(logits.log_softmax(-1), ref_logits.log_softmax(-1))
