"""What the scheduler may do: sizes, bounds, deadlines. Written by the caller, read by the core."""

from dataclasses import dataclass, fields

from roll_scheduler.errors import SchedulerError
from roll_scheduler.group_filter import GroupFilter

__all__ = ["SchedulerPolicy"]

_LEAST = {
    "groups_per_batch": 1,
    "group_size": 1,
    "max_staleness": 0,
    "retries": 0,
    "min_members": 0,
    "max_failures": 0,
    "max_refills": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPolicy:
    """Sizes and bounds of the scheduling, for example `SchedulerPolicy(groups_per_batch=16, group_size=8)`.

    Attributes:
        groups_per_batch: Groups in one batch, >= 1.
        group_size: Completions of one prompt, >= 1.
        max_staleness: Greatest difference between the version at delivery and the oldest version in a group,
            >= 0. At 0 nothing runs between two batches; at k up to (k + 1) * groups_per_batch groups do.
        retries: Times that a failed ticket is sent out again, >= 0.
        min_members: Graded members with which a group is still delivered when others failed, 1 to group_size.
            0 stands for 2, or 1 in a group of one.
        generate_deadline_s: Seconds that one generation may take, > 0.
        grade_deadline_s: Seconds that one grading may take, > 0.
        max_failures: Failed attempts in one batch beyond which `TooManyFailures` is raised, >= 0.
        filters: Applied in this order to every complete group.
        max_refills: Batches' worth of groups that may be filtered or stale for one batch before
            `StarvationError` is raised, >= 0.

    Raises:
        SchedulerError: If a value is out of its range.
    """

    groups_per_batch: int
    group_size: int
    max_staleness: int = 0
    retries: int = 1
    min_members: int = 0
    generate_deadline_s: float = 600.0
    grade_deadline_s: float = 60.0
    max_failures: int = 100
    filters: tuple[GroupFilter, ...] = ()
    max_refills: int = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = _LEAST.get(field.name)
            if least is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise SchedulerError(
                    f"SchedulerPolicy.{field.name}: got {value!r}, allowed is an integer >= {least}"
                )
            if field.name.endswith("_deadline_s") and not (isinstance(value, int | float) and value > 0):
                raise SchedulerError(f"SchedulerPolicy.{field.name}: got {value!r}, allowed is a number > 0")
        if self.min_members == 0:
            object.__setattr__(self, "min_members", min(2, self.group_size))
        if self.min_members > self.group_size:
            raise SchedulerError(
                f"SchedulerPolicy.min_members: got {self.min_members}, allowed is at most the group size "
                f"of {self.group_size}"
            )
        for position, item in enumerate(self.filters):
            if not isinstance(item, GroupFilter):
                raise SchedulerError(
                    f"SchedulerPolicy.filters[{position}]: got {item!r}, allowed is a GroupFilter"
                )
