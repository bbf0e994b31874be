"""The loss of a critic."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None, coef: float = 0.5
) -> Tensor:
    """[N], coef (V - R)^2, or the greater of it and that of V held within `clip` of its old value.

    Args:
        values: [N], with gradient.
        old_values: [N], at the weights with which the step began; not looked at without `clip`.
        returns: [N], the targets.
        clip: Above 0, or None.
        coef: 0.5 in PPO; 1 in AsyPPO.

    Source: PPO, arXiv 1707.06347, eq. 9, with the clip of its reference implementation.
    """
    free = (values - returns).square()
    if clip is None:
        return coef * free
    held = old_values + (values - old_values).clamp(-clip, clip)
    return coef * torch.maximum(free, (held - returns).square())
