"""How many groups date from which policy version. Kept by the core, so that no event has to look at all."""

from collections import Counter

from roll_scheduler.lifecycle.flight import FlightGroup
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.rounds.staleness import must_wait

__all__ = ["GroupAges"]


class GroupAges:
    """Counts of groups by version.

    Attributes:
        unfinished: Groups that have started and are not complete, by the version they were sent out at.
        ready: Complete groups, by the oldest version that sampled a token of theirs.
    """

    def __init__(self) -> None:
        self.unfinished: Counter[int] = Counter()
        self.ready: Counter[int] = Counter()

    def sent(self, group: FlightGroup, version: int) -> None:
        """A member was sent out at `version`, which is at least that of any member before."""
        if group.sent is None:
            group.sent = version
            self.unfinished[version] += 1

    def changed(self, group: FlightGroup) -> None:
        """A member of an incomplete group was called back, dropped, or sampled at another version."""
        _forget(self.unfinished, group.sent)
        group.sent = group.sent_at()
        if group.sent is not None:
            self.unfinished[group.sent] += 1

    def completed(self, group: FlightGroup) -> None:
        """A group became ready; its `oldest` is known."""
        _forget(self.unfinished, group.sent)
        group.sent = None
        self.ready[group.oldest] += 1

    def must_wait(self, version: int, policy: SchedulerPolicy) -> bool:
        """Whether the next batch has to wait for a slow group; see `choose_groups`."""
        return must_wait(
            self.ready,
            self.unfinished,
            version=version,
            max_staleness=policy.max_staleness,
            groups_per_batch=policy.groups_per_batch,
        )

    def ended(self, group: FlightGroup, *, ready: bool) -> None:
        """A group was delivered or dropped, `ready` or before."""
        if ready:
            _forget(self.ready, group.oldest)
        else:
            _forget(self.unfinished, group.sent)


def _forget(counts: Counter[int], version: int | None) -> None:
    if version is None:
        return
    counts[version] -= 1
    if not counts[version]:
        del counts[version]
