"""The arithmetic of policy versions: how much may be outstanding, what is too old, what has to go next."""

from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["admissible", "choose_groups", "may_train", "must_wait", "staleness"]


def admissible(*, groups_per_batch: int, max_staleness: int, outstanding: int, extra: int = 0) -> int:
    """Number of groups that may be admitted: outstanding stays <= (max_staleness + 1) * groups_per_batch.

    Args:
        groups_per_batch: Groups in one batch.
        max_staleness: The bound; 0 is synchronous.
        outstanding: Groups that were admitted and have not ended, plus those still being trained on.
        extra: Speculative groups, which come on top.
    """
    return max(0, (max_staleness + 1) * groups_per_batch + extra - outstanding)


def staleness(*, version: int, oldest_version: int) -> int:
    """Versions published since the oldest token was sampled, 0 if an engine is ahead of the publication.

    Args:
        version: Version when the batch enters training.
        oldest_version: Oldest version in the group.
    """
    return max(0, version - oldest_version)


def may_train(*, version: int, oldest_version: int, max_staleness: int) -> bool:
    """Whether the staleness is within the bound (the bound itself is allowed)."""
    return staleness(version=version, oldest_version=oldest_version) <= max_staleness


def choose_groups(
    ready: Sequence[tuple[int, int]],
    unfinished: Sequence[int],
    *,
    version: int,
    max_staleness: int,
    groups_per_batch: int,
) -> list[int] | None:
    """Ids of the groups of the next batch, or None where it is better to wait for a slow group.

    Oldest groups go first. If versions rise by one with each batch, a group sampled at version v has to be
    delivered at v + max_staleness at the latest, and each batch takes at most groups_per_batch of those. A
    choice of ready groups is refused when it would leave more old groups than the batches to come can take:
    slow prompts would then be dropped as stale, and the training data would lean towards short answers.

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
    return [group for _, group in sorted(ready)[:groups_per_batch]]


def must_wait(
    ready: Mapping[int, int],
    unfinished: Mapping[int, int],
    *,
    version: int,
    max_staleness: int,
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
    expired_below = version - max_staleness
    for batches_left in range(max_staleness):
        last = expired_below + batches_left
        old = sum(count for oldest, count in ready.items() if oldest <= last)
        slow = sum(count for at, count in unfinished.items() if expired_below <= at <= last)
        due_now = old + slow - batches_left * groups_per_batch
        if min(old, groups_per_batch) < min(due_now, groups_per_batch):
            return True
    return False
