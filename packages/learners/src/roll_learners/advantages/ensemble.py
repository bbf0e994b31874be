"""Several critics of one policy: which responses each learns from, and what their differences say.

Source: AsyPPO, arXiv 2510.01656, sections 3.2 and 3.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def deal_responses(groups: Tensor, critics: int) -> Tensor:
    """int64[S], the critic that learns from each response: the i-th of a prompt goes to critic i mod M.

    Every critic sees every prompt, and no response goes to two.

    Args:
        groups: int64[S], the prompt of each response.
        critics: M.
    """
    seen: dict[int, int] = {}
    owners = []
    for group in groups.tolist():
        owners.append(seen.get(group, 0) % critics)
        seen[group] = seen.get(group, 0) + 1
    return torch.tensor(owners, dtype=torch.int64)


def mean_values(values: Tensor) -> Tensor:
    """[N], the mean over critics of values[M, N]."""
    return values.mean(0)


def disagreement(values: Tensor) -> Tensor:
    """[N], the standard deviation over critics of values[M, N], of the population; 0 for one critic."""
    return values.std(0, correction=0)


def where_critics_differ(sigma: Tensor, share: float) -> Tensor:
    """bool[N], False for the floor(share x N) tokens with the lowest sigma: nothing is learned there.

    Args:
        sigma: [N], over all tokens of the batch; of equal numbers the earlier one is lower.
        share: 0 to 1; the paper's value is 0.2.
    """
    return _without(sigma.argsort(stable=True), share)


def where_critics_agree(sigma: Tensor, share: float) -> Tensor:
    """bool[N], False for the floor(share x N) tokens with the highest sigma: nothing is explored there.

    Args:
        sigma: [N], over all tokens of the batch; of equal numbers the earlier one is higher.
        share: 0 to 1; the paper's value is 0.2.
    """
    return _without(sigma.argsort(stable=True, descending=True), share)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Scalar, 1 - var(returns - values) / var(returns): 1 is perfect, 0 as good as a constant.

    NaN if all returns are equal.

    Args:
        values: [N].
        returns: [N].
    """
    spread = returns.var(correction=0)
    left = (returns - values).var(correction=0)
    return torch.where(spread > 0, 1 - left / spread, torch.nan)


def _without(order: Tensor, share: float) -> Tensor:
    kept = torch.ones(len(order), dtype=torch.bool, device=order.device)
    kept[order[: math.floor(share * len(order) + 1e-9)]] = False
    return kept
