"""Which complete groups carry a signal, and which make the batch: the oldest first, or those that the batch
filter chooses.

numpy is imported when the first group is complete: it takes longer than all the rest of the package.
"""

import math
from collections.abc import Iterable, Sequence

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.rounds.group_filter import BatchFilter, GroupFilter
from roll_scheduler.rounds.staleness import oldest_first, oldest_share
from roll_scheduler.ticket import TicketState

__all__ = ["excess_groups", "first_refusal", "select"]


def first_refusal(members: Sequence[Flight], filters: Sequence[GroupFilter]) -> GroupFilter | None:
    """The first filter that does not keep a complete group, None if all do.

    Args:
        members: Those of the group that have a reward, in member order.
        filters: In the order in which they are asked.
    """
    if not filters:
        return None
    import numpy as np

    values = np.array([flight.value for flight in members], dtype=np.float64)
    truncated = np.array([flight.truncated for flight in members], dtype=np.bool_)
    for group_filter in filters:
        if not group_filter.keep(values, truncated):
            return group_filter
    return None


def select(
    ready: Iterable[FlightGroup], policy: SchedulerPolicy, *, version: int
) -> tuple[list[int], list[int]]:
    """Ids of the groups of the next batch, sorted, and of those that the batch filter refused.

    Args:
        ready: Complete groups; with a batch filter as many as it wants to choose from.
        policy: Sizes, bound and batch filter.
        version: Policy version.

    Raises:
        SchedulerError: The batch filter chose none, too many, or something that is not there.
    """
    if policy.batch_filter is not None:
        pool = sorted(ready, key=lambda group: group.id)[: policy.pool]
        return _filtered(pool, policy.batch_filter, policy.groups_per_batch)
    chosen = oldest_first(
        [(group.oldest, group.id) for group in ready],
        version=version,
        max_staleness=policy.max_staleness,
        groups_per_batch=policy.groups_per_batch,
    )
    return sorted(chosen), []


def excess_groups(
    ready: Iterable[FlightGroup], policy: SchedulerPolicy, *, version: int
) -> list[FlightGroup]:
    """Complete groups of the oldest version beyond the share of them that a batch may take.

    Args:
        ready: Complete groups.
        policy: Size and bound.
        version: Policy version.
    """
    expiring = version - math.ceil(policy.max_staleness)
    old = sorted((group for group in ready if group.oldest <= expiring), key=lambda group: group.id)
    share = oldest_share(groups_per_batch=policy.groups_per_batch, max_staleness=policy.max_staleness)
    return old[share:]


def _filtered(
    pool: Sequence[FlightGroup], batch_filter: BatchFilter, groups_per_batch: int
) -> tuple[list[int], list[int]]:
    if not pool:
        return [], []
    import numpy as np

    values = [
        np.array(
            [flight.value for flight in group.flights if flight.state is TicketState.READY], dtype=np.float64
        )
        for group in pool
    ]
    most = min(groups_per_batch, len(pool))
    indices = batch_filter.choose(values, most)
    if not 1 <= len(set(indices)) == len(indices) <= most or not set(indices) <= set(range(len(pool))):
        raise SchedulerError(
            f"batch filter {batch_filter.name!r} chose {list(indices)} of {len(pool)} groups, allowed are 1 "
            f"to {most} different ones"
        )
    chosen = {pool[index].id for index in indices}
    return sorted(chosen), [group.id for group in pool if group.id not in chosen]
