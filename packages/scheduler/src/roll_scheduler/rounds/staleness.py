"""The arithmetic of policy versions: how much may be outstanding, what is too old, what has to go next.

A bound of 1.5 over batches of B groups means: nothing in a batch is more than 2 versions old, at most B/2 of
its groups are 2 versions old, and at most 1.5 B groups are ahead of the batch that is being made or trained
on. So 0 is synchronous, and a whole number k admits (k + 1) B groups of which any may be k versions old.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = [
    "admissible", "choose_groups", "groups_ahead", "may_train", "must_wait", "oldest_first",
    "oldest_share", "staleness",
]  # fmt: skip

ROUNDING = 1e-9
"""What a product like 0.1 * 30 may exceed the whole number that is meant by."""


def groups_ahead(*, groups_per_batch: int, max_staleness: float) -> int:
    """Groups that may be outstanding beyond those of one batch: max_staleness * groups_per_batch, rounded up.

    Args:
        groups_per_batch: Groups in one batch.
        max_staleness: The bound.
    """
    return math.ceil(max_staleness * groups_per_batch - ROUNDING)


def oldest_share(*, groups_per_batch: int, max_staleness: float) -> int:
    """Groups of one batch that may be as old as the bound, rounded up, allows; all, if it is a whole number.

    Args:
        groups_per_batch: Groups in one batch.
        max_staleness: The bound.
    """
    whole = max(0, math.ceil(max_staleness) - 1)
    if max_staleness == 0:
        return groups_per_batch
    return groups_ahead(groups_per_batch=groups_per_batch, max_staleness=max_staleness - whole)


def admissible(*, groups_per_batch: int, max_staleness: float, outstanding: int, extra: int = 0) -> int:
    """Number of groups that may be admitted: outstanding stays <= (max_staleness + 1) * groups_per_batch.

    Args:
        groups_per_batch: Groups in one batch.
        max_staleness: The bound; 0 is synchronous.
        outstanding: Groups that were admitted and have not ended, plus those still being trained on.
        extra: Speculative groups, which come on top.
    """
    ahead = groups_ahead(groups_per_batch=groups_per_batch, max_staleness=max_staleness)
    return max(0, groups_per_batch + ahead + extra - outstanding)


def staleness(*, version: int, oldest_version: int) -> int:
    """Versions published since the oldest token was sampled, 0 if an engine is ahead of the publication.

    Args:
        version: Version when the batch enters training.
        oldest_version: Oldest version in the group.
    """
    return max(0, version - oldest_version)


def may_train(*, version: int, oldest_version: int, max_staleness: float) -> bool:
    """Whether the staleness is within the bound, rounded up (the bound itself is allowed)."""
    return staleness(version=version, oldest_version=oldest_version) <= math.ceil(max_staleness)


def choose_groups(
    ready: Sequence[tuple[int, int]],
    unfinished: Sequence[int],
    *,
    version: int,
    max_staleness: float,
    groups_per_batch: int,
) -> list[int] | None:
    """Ids of the groups of the next batch, or None where it is better to wait for a slow group.

    Oldest groups go first, at most `oldest_share` of the oldest version. If versions rise by one with each
    batch, a group sampled at version v has to be delivered at v + max_staleness at the latest, and each batch
    takes at most groups_per_batch of those. A choice of ready groups is refused when it would leave more old
    groups than the batches to come can take: slow prompts would then be dropped as stale, and the training
    data would lean towards short answers. The rule refuses nothing else: what it waits for would be lost.

    Args:
        ready: (oldest version, id) of each complete group.
        unfinished: Version at which each group that has started and is not complete was sent out.
        version: Current version.
        max_staleness: The bound.
        groups_per_batch: Groups in one batch.
    """
    if must_wait(
        Counter(oldest for oldest, _ in ready),
        Counter(unfinished),
        version=version,
        max_staleness=max_staleness,
        groups_per_batch=groups_per_batch,
    ):
        return None
    return oldest_first(
        ready, version=version, max_staleness=max_staleness, groups_per_batch=groups_per_batch
    )


def oldest_first(
    ready: Sequence[tuple[int, int]], *, version: int, max_staleness: float, groups_per_batch: int
) -> list[int]:
    """Ids of the groups of the next batch, the oldest first, at most `oldest_share` of the oldest version.

    Args:
        ready: (oldest version, id) of each complete group.
        version: Current version.
        max_staleness: The bound.
        groups_per_batch: Groups in one batch.
    """
    in_order = sorted(ready)
    if max_staleness % 1 == 0:
        return [group for _, group in in_order[:groups_per_batch]]
    expiring = version - math.ceil(max_staleness)
    share = oldest_share(groups_per_batch=groups_per_batch, max_staleness=max_staleness)
    oldest = [group for at, group in in_order if at <= expiring]
    younger = [group for at, group in in_order if at > expiring]
    return (oldest[:share] + younger)[:groups_per_batch]


def must_wait(
    ready: Mapping[int, int],
    unfinished: Mapping[int, int],
    *,
    version: int,
    max_staleness: float,
    groups_per_batch: int,
) -> bool:
    """Whether `choose_groups` refuses, from counts alone: it takes the oldest, whichever they are.

    Args:
        ready: Complete groups by oldest version.
        unfinished: Groups that have started and are not complete, by the version they were sent out at.
        version: Current version.
        max_staleness: The bound.
        groups_per_batch: Groups in one batch.
    """
    bound = math.ceil(max_staleness)
    share = oldest_share(groups_per_batch=groups_per_batch, max_staleness=max_staleness)
    expired_below = version - bound
    # What is asked below is asked of each batch to come; between two versions at which groups are under way
    # only `later` grows, which makes it less pressing.
    looked_at = {0, 1} | {at - expired_below for at in unfinished}
    for batches_left in looked_at:
        if not 0 <= batches_left < bound:
            continue
        last = expired_below + batches_left
        old = sum(count for oldest, count in ready.items() if oldest <= last)
        slow = sum(count for at, count in unfinished.items() if expired_below <= at <= last)
        # The last of the batches to come finds those of `last` at the bound, and takes only a share of them.
        later = (batches_left - 1) * groups_per_batch + share if batches_left else 0
        now = groups_per_batch if batches_left else share
        if min(old, now) < min(old + slow - later, now):
            return True
    return False
