"""The arithmetic of policy versions: how much may be outstanding, what is too old, what has to go next."""

from collections.abc import Sequence

__all__ = ["admissible", "choose_groups", "may_train", "staleness"]


def admissible(*, groups_per_batch: int, max_staleness: int, outstanding: int) -> int:
    """Number of groups that may be admitted: outstanding stays <= (max_staleness + 1) * groups_per_batch.

    Args:
        groups_per_batch: Groups in one batch.
        max_staleness: The bound; 0 is synchronous.
        outstanding: Groups that were admitted and have not ended, plus those still being trained on.
    """
    return max(0, (max_staleness + 1) * groups_per_batch - outstanding)


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
    chosen = sorted(ready)[:groups_per_batch]
    expired_below = version - max_staleness
    sampled_at = [oldest for oldest, _ in ready] + [at for at in unfinished if at >= expired_below]
    for batches_left in range(max_staleness):
        last = expired_below + batches_left
        due_now = sum(at <= last for at in sampled_at) - batches_left * groups_per_batch
        served = sum(oldest <= last for oldest, _ in chosen)
        if served < min(due_now, groups_per_batch):
            return None
    return [group for _, group in chosen]
