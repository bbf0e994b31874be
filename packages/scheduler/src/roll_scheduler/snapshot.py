"""What a scheduler has to remember for a resume. Made by `snapshot()`, taken by the constructors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from roll_scheduler.errors import SchedulerError

__all__ = ["SchedulerSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSnapshot:
    """Where to go on, for example

        SchedulerSnapshot(first_group=3, resolved=(4, 6), version=2, ends={"delivered": 40}, totals={...})

    Groups 0 to 2, 4 and 6 have ended; 3, 5 and all from 7 on are generated after the resume, with the same
    seeds. A group counts as ended once it was delivered or dropped, so take a snapshot after the batch that
    was delivered last has been trained on.

    Attributes:
        first_group: Oldest occurrence that has not ended.
        resolved: Later ones that have, sorted.
        deferred: Those that wait for a long round, sorted.
        version: Policy version.
        ends: Tickets that ended, by how.
        totals: Counts over the run.

    Raises:
        SchedulerError: If a number is negative, or a resolved group comes before the first.
    """

    first_group: int = 0
    resolved: tuple[int, ...] = ()
    deferred: tuple[int, ...] = ()
    version: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {**self.ends, **self.totals, "first_group": self.first_group, "version": self.version}
        for name, value in counts.items():
            if value < 0:
                raise SchedulerError(f"SchedulerSnapshot: {name} is {value}, allowed is >= 0")
        early = [group for group in self.resolved if group < self.first_group]
        if early:
            raise SchedulerError(
                f"SchedulerSnapshot: resolved group {early[0]} comes before first_group {self.first_group}"
            )


def cursor(
    next_group: int, outstanding: Iterable[int], skipped: Iterable[int]
) -> tuple[int, tuple[int, ...]]:
    """`first_group` and `resolved` of a scheduler.

    Args:
        next_group: Occurrence that would be admitted next.
        outstanding: Groups that were admitted and have not ended.
        skipped: Groups from `next_group` on that ended before an earlier resume.
    """
    open_groups = set(outstanding)
    first = min([*open_groups, next_group])
    ended = (group for group in range(first, next_group) if group not in open_groups)
    return first, tuple(sorted({*ended, *(group for group in skipped if group >= next_group)}))
