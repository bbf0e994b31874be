"""Entropy of next-token distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """[N], -sum p log p in nats, finite also where logits are -inf.

    Args:
        logits: [N, V], already divided by the temperature.
    """
    return entropy_from(logits, logits.logsumexp(-1))


def entropy_from(logits: Tensor, normaliser: Tensor) -> Tensor:
    """`entropy` for a caller that already has the normaliser[N] = logsumexp(logits)."""
    # A logit of -inf has probability 0 and must add 0; times -inf it would add NaN.
    finite = logits.clamp(min=torch.finfo(logits.dtype).min)
    probabilities = (logits - normaliser.unsqueeze(-1)).exp()
    return normaliser - (probabilities * finite).sum(-1)
