"""What the scheduler may do: sizes, bounds, deadlines. Written by the caller, read by the core."""

from dataclasses import dataclass, fields

from roll_scheduler.errors import SchedulerError
from roll_scheduler.group_filter import GroupFilter

__all__ = ["OverProvision", "SchedulerPolicy"]

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
class OverProvision:
    """More than a batch needs, so that the slowest need not be waited for.

    For example OverProvision(groups=4, members=2, defer=True).

    The first `groups_per_batch` groups to complete make the batch, and of each the first `group_size`
    completions to be graded; the rest is aborted. That favours short completions: see the metrics
    `scheduler/kept_s` and `scheduler/aborted_s`, and `defer`.

    Attributes:
        groups: Groups beyond those of a batch, >= 0. They do not count against the admission cap.
        members: Completions of each group beyond its size, >= 0.
        defer: What becomes of groups that a batch did without. False: a synchronous run (max_staleness 0)
            drops them, an asynchronous one goes on with them until they are too stale. True, in synchronous
            runs: their prompts are kept until they make a batch, and then have a long round of their own
            without over-provisioning, so that every prompt is trained on once an epoch (tail rounds).

    Raises:
        SchedulerError: If a value is out of its range, or nothing is over-provisioned.

    Source: RollPacker, arXiv 2509.21009, section 3 (tail batching; its eta of 1.25 for 16 x 8 is groups=4,
    members=2); ROLL Flash, arXiv 2510.11345 (redundant environments).
    """

    groups: int = 0
    members: int = 0
    defer: bool = False

    def __post_init__(self) -> None:
        for name, value in (("groups", self.groups), ("members", self.members)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SchedulerError(f"OverProvision.{name}: got {value!r}, allowed is an integer >= 0")
        if self.groups + self.members == 0:
            raise SchedulerError("OverProvision: got 0 groups and 0 members, allowed is more of at least one")


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
        over_provision: Speculative groups and members, None for none.
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
    over_provision: OverProvision | None = None
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
        extra = self.over_provision
        if extra is not None and extra.defer and self.max_staleness > 0:
            raise SchedulerError(
                f"SchedulerPolicy.over_provision.defer: got True with max_staleness {self.max_staleness}, "
                "allowed is max_staleness 0: an asynchronous run goes on with what a batch did without"
            )
        if extra is not None and extra.groups > self.groups_per_batch:
            raise SchedulerError(
                f"SchedulerPolicy.over_provision.groups: got {extra.groups}, allowed is at most "
                f"groups_per_batch, {self.groups_per_batch}"
            )
        for position, item in enumerate(self.filters):
            if not isinstance(item, GroupFilter):
                raise SchedulerError(
                    f"SchedulerPolicy.filters[{position}]: got {item!r}, allowed is a GroupFilter"
                )

    @property
    def extra_groups(self) -> int:
        """Speculative groups of a round."""
        return self.over_provision.groups if self.over_provision else 0

    @property
    def extra_members(self) -> int:
        """Speculative members of a group."""
        return self.over_provision.members if self.over_provision else 0

    @property
    def defers(self) -> bool:
        """Whether there are tail rounds."""
        return self.over_provision is not None and self.over_provision.defer
