"""Work dealt over ranks and micro-batches so that all finish together, each sample in exactly one place.

Data-parallel learners call it. Their collectives need as many passes on every rank, so a rank that has fewer
micro-batches than another gets empty ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from roll_learners.errors import LearnerError
from roll_learners.microbatch import plan_micro_batches

Lengths = npt.NDArray[np.int64]

PlanMicroBatches = Callable[[Lengths], tuple[Lengths, ...]]
"""From the lengths of a rank's samples to its micro-batches, by positions among these samples."""


def sequence_costs(lengths: Lengths, *, hidden_size: int) -> Lengths:
    """int64[B], what each sequence costs a transformer of width H, as integers that can be compared.

    A layer's matrix products cost about 24 H^2 operations a token, and attention 4 H for each of the L / 2
    tokens that it looks back at on average; so L tokens cost 12 H L + L^2.

    Args:
        lengths: int64[B], tokens.
        hidden_size: H of the model.
    """
    costs: Lengths = 12 * hidden_size * lengths + lengths**2
    return costs


def partition(
    costs: npt.NDArray[np.int64], parts: int, *, equal_counts: bool = False
) -> tuple[npt.NDArray[np.int64], ...]:
    """B items divided into parts of nearly equal cost, by the largest differencing method.

    The two partial divisions with the greatest spread are joined, the heavy parts of one to the light parts
    of the other, until one is left. The result depends on the arguments alone and holds each item once.

    Args:
        costs: int64[B], at least 0 each.
        parts: At least 1. Where there are more parts than items some stay empty.
        equal_counts: The numbers of items in two parts differ by at most 1.

    Returns:
        Positions of items in ascending order, one array a part.

    Raises:
        LearnerError: No part, or a negative cost.

    Source: Karmarkar and Karp, 1982, "The differencing method of set partitioning".
    """
    if parts < 1:
        raise LearnerError(f"partition: parts is {parts}: at least 1")
    if len(costs) and costs.min() < 0:
        raise LearnerError(f"partition: item {int(costs.argmin())} costs {costs.min()}: at least 0")
    order = np.argsort(-costs, kind="stable").tolist()
    width = parts if equal_counts else 1
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for number, first in enumerate(range(0, len(order), width)):
        items = order[first : first + width]
        division = [(int(costs[i]), [i]) for i in items] + [(0, list[int]())] * (parts - len(items))
        heapq.heappush(heap, (-_spread(division), number, division))
    if not heap:
        return tuple(np.zeros(0, np.int64) for _ in range(parts))
    number = len(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [
            (a + b, members + others) for (a, members), (b, others) in zip(one, reversed(other), strict=True)
        ]
        joined.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (-_spread(joined), number, joined))
        number += 1
    return tuple(np.array(sorted(members), np.int64) for _, members in heap[0][2])


def plan_ranks(
    lengths: Lengths,
    *,
    ranks: int,
    budget: int,
    costs: Lengths | None = None,
    plan: PlanMicroBatches | None = None,
) -> tuple[tuple[Lengths, ...], ...]:
    """The micro-batches of each rank: as many on every rank, of which some may be empty.

    Args:
        lengths: int64[B], tokens that each sample feeds to the model, at least 1.
        ranks: At least 1.
        budget: Most padded tokens (samples x longest) of a micro-batch; not used with `plan`.
        costs: int64[B], what is balanced over ranks, such as `sequence_costs`; None balances tokens.
        plan: How a rank's samples become micro-batches; None is `plan_micro_batches`.

    Returns:
        For each rank its micro-batches, each the positions of its samples; empty ones come last.

    Raises:
        LearnerError: No rank, or a sample alone is longer than the budget.
    """
    if plan is None:

        def plan(own: Lengths) -> tuple[Lengths, ...]:
            """Padded rows."""
            return plan_micro_batches(own, budget=budget)

    dealt = partition(lengths if costs is None else costs, ranks)
    planned = [[own[chosen] for chosen in plan(lengths[own])] for own in dealt]
    most = max(len(batches) for batches in planned)
    nothing = np.zeros(0, np.int64)
    return tuple(tuple(batches + [nothing] * (most - len(batches))) for batches in planned)


def plan_token_batches(lengths: Lengths, *, budget: int) -> tuple[Lengths, ...]:
    """The fewest micro-batches of at most `budget` tokens that first-fit-decreasing finds, for packed rows.

    The samples are then dealt anew over that many micro-batches where that makes the largest smaller.

    Args:
        lengths: int64[B], at least 1 each.
        budget: Most tokens of a micro-batch, without padding.

    Returns:
        Positions of samples, one array a micro-batch; the one with most tokens comes first.

    Raises:
        LearnerError: A sample alone is longer than the budget.
    """
    if not len(lengths):
        return ()
    if lengths.max() > budget:
        raise LearnerError(
            f"a sample feeds {lengths.max()} tokens to the model, but micro_batch_tokens is "
            f"{budget}: raise it, or lower the limits on prompt and response"
        )
    left: list[int] = []
    bins: list[list[int]] = []
    for i in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[i])
        place = next((b for b, room in enumerate(left) if room >= size), len(bins))
        if place == len(bins):
            left.append(budget)
            bins.append([])
        left[place] -= size
        bins[place].append(i)
    packed = [np.array(sorted(each), np.int64) for each in bins]
    dealt = [part for part in partition(lengths, len(bins)) if len(part)]
    if max(lengths[part].sum() for part in dealt) <= max(lengths[part].sum() for part in packed):
        packed = dealt
    return tuple(sorted(packed, key=lambda part: (-int(lengths[part].sum()), int(part[0]))))


def _spread(division: list[tuple[int, list[int]]]) -> int:
    """Of a division whose parts are in descending order of cost."""
    return division[0][0] - division[-1][0]
