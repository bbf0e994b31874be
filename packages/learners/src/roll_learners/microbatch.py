"""Which samples go through the model together, so that padding and launches cost least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from roll_learners.errors import LearnerError

LAUNCH_TOKENS = 128
"""What one more forward and backward costs, in padded tokens: measured on two small models on a CPU."""


def plan_micro_batches(
    lengths: npt.NDArray[np.int64], *, budget: int, launch_tokens: int = LAUNCH_TOKENS
) -> tuple[npt.NDArray[np.int64], ...]:
    """The cheapest division of B samples into micro-batches, each padded to its longest sample.

    Samples are sorted by length and cut where the sum over micro-batches of (samples x longest +
    launch_tokens) is least. The result depends on the arguments alone, holds each sample exactly
    once, and begins with the longest, where memory would run out.

    Args:
        lengths: int64[B], tokens that each sample feeds to the model, at least 1.
        budget: Most padded tokens (samples x longest) of a micro-batch.
        launch_tokens: Fixed cost of a micro-batch, in tokens.

    Returns:
        Positions of samples, one array a micro-batch.

    Raises:
        LearnerError: A sample alone is longer than the budget.
    """
    if not len(lengths):
        return ()
    order = np.argsort(lengths, kind="stable")
    ascending = lengths[order]
    if ascending[-1] > budget:
        raise LearnerError(
            f"a sample feeds {ascending[-1]} tokens to the model, but micro_batch_tokens is "
            f"{budget}: raise it, or lower the limits on prompt and response"
        )
    cuts = _cheapest_cuts(ascending, budget, launch_tokens)
    return tuple(order[first:last] for first, last in cuts)


def _cheapest_cuts(
    ascending: npt.NDArray[np.int64], budget: int, launch_tokens: int
) -> list[tuple[int, int]]:
    """Ranges [first, last) of least total cost, last range first, by dynamic programming."""
    count = len(ascending)
    cost = np.zeros(count + 1, np.int64)  # of the first i samples
    start = np.zeros(count + 1, np.int64)  # where the last micro-batch of those begins
    for last in range(1, count + 1):
        longest = ascending[last - 1]
        earliest = max(0, last - int(budget // longest))
        padded = (last - np.arange(earliest, last)) * longest
        totals = cost[earliest:last] + padded
        best = int(totals.argmin())
        cost[last], start[last] = totals[best] + launch_tokens, earliest + best
    cuts, last = [], count
    while last:
        cuts.append((int(start[last]), last))
        last = int(start[last])
    return cuts
