"""What the scheduler may do: sizes, bounds, deadlines. Written by the caller, read by the core."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal

from roll_scheduler.errors import SchedulerError
from roll_scheduler.health.stragglers import Stragglers
from roll_scheduler.lifecycle.adaptive_deadline import AdaptiveDeadline
from roll_scheduler.numbers import is_finite
from roll_scheduler.partial import PartialRollouts
from roll_scheduler.rounds.group_filter import BatchFilter, GroupFilter
from roll_scheduler.routers.catalogue import ROUTERS

__all__ = ["OverProvision", "SchedulerPolicy"]

_LEAST = {
    "groups_per_batch": 1,
    "group_size": 1,
    "retries": 0,
    "min_members": 0,
    "max_failures": 0,
    "max_refills": 0,
    "quarantine_after": 0,
}

MOST_STALENESS = 1_000_000
"""Greatest bound on staleness: far beyond what anybody trains with, and every product with it is exact."""

_IDENTITY = (
    "groups_per_batch", "group_size", "max_staleness", "stale", "min_members", "filters", "batch_filter",
    "over_provision", "partial",
)  # fmt: skip
"""Fields that decide which samples are trained on; the others say how patiently and how fast."""


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
        adaptive: Whether a round sends out only as much more as pays, by the lengths that were seen, with
            `groups` and `members` as limits; it begins with none. See `AdaptiveOverProvision`.

    Raises:
        SchedulerError: If a value is out of its range, or nothing is over-provisioned.

    Source: RollPacker, arXiv 2509.21009, section 3 (tail batching; its eta of 1.25 for 16 x 8 is groups=4,
    members=2); ROLL Flash, arXiv 2510.11345 (redundant environments).
    """

    groups: int = 0
    members: int = 0
    defer: bool = False
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name, value in (("groups", self.groups), ("members", self.members)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SchedulerError(f"OverProvision.{name}: got {value!r}, allowed is an integer >= 0")
        for name, flag in (("defer", self.defer), ("adaptive", self.adaptive)):
            if not isinstance(flag, bool):
                raise SchedulerError(f"OverProvision.{name}: got {flag!r}, allowed is True or False")
        if self.groups + self.members == 0:
            raise SchedulerError("OverProvision: got 0 groups and 0 members, allowed is more of at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPolicy:
    """Sizes and bounds of the scheduling, for example `SchedulerPolicy(groups_per_batch=16, group_size=8)`.

    Attributes:
        groups_per_batch: Groups in one batch, >= 1.
        group_size: Completions of one prompt, >= 1.
        max_staleness: Greatest difference between the version at delivery and the oldest version in a group,
            0 to a million. At 0 nothing runs between two batches; at k up to (k + 1) * groups_per_batch
            groups do. A fraction bounds the share of a batch too: at 0.5 at most half of its groups are one
            version old, and at most half a batch is ahead.
        stale: What becomes of a group that is too old for training. `"drop"`: it ends and is counted.
            `"requeue"`: its prompt is generated again with the current version, so that every prompt is
            trained on; the tokens are lost and counted.
        partial: Whether running completions may be stopped and go on later, None for not.
        retries: Times that a failed ticket is sent out again, >= 0.
        quarantine_after: Losses of replicas that a prompt was blamed for, the last of them alone, with which
            its group is dropped as `"quarantined"`; 0 for never or >= 2. What runs on a replica when it is
            lost is suspected, runs again with fewer suspects beside it, and is cleared when it ends well.
        min_members: Graded members with which a group is still delivered when others failed, 1 to group_size.
            0 stands for 2, or 1 in a group of one.
        generate_deadline_s: Seconds that one generation (of a partial one: a part) may take, > 0.
        grade_deadline_s: Seconds that one grading may take, > 0.
        adaptive_grading: A shorter deadline for gradings that follows from what correct ones took, None for
            none.
        max_failures: Failed attempts in one batch beyond which `TooManyFailures` is raised, >= 0.
        filters: Applied in this order to every complete group.
        batch_filter: Chooses the groups of a batch among more of them, None for all; with max_staleness 0
            and without over-provisioned groups.
        over_provision: Speculative groups and members, None for none.
        concurrency: Tickets of one tag that may wait for a slot or generate at a time, each >= 1; tags that
            are absent are not limited. A prompt's tag is what `RolloutScheduler(tag=...)` says.
        order: Which waiting ticket starts next: `"fifo"`, group by group and member by member, or
            `"longest_first"`, by predicted length.
        router: Which replica it gets, by the names of `ROUTERS`. With `"prefix_affinity"` a free slot prefers
            the prompt whose KV is there.
        kv_tokens: Tokens of KV that fit on a replica, >= 1; as many tickets run there as are predicted to
            fit. None leaves it to the engines.
        weigh_health: Whether replicas that are slow or fail get less.
        stragglers: What is done about completions that would end sooner on another replica; None: nothing.
        wait_deadline_s: Seconds for which a batch may be waited for while nothing runs, > 0: with all
            replicas draining, or in a pause that nobody ends. Then `DeadlineExceeded` names the reason.
        max_refills: Batches' worth of groups that may be filtered or stale for one batch before
            `StarvationError` is raised, >= 0.

    Raises:
        SchedulerError: If a value is out of its range, or two of them exclude each other.
    """

    groups_per_batch: int
    group_size: int
    max_staleness: float = 0
    stale: Literal["drop", "requeue"] = "drop"
    partial: PartialRollouts | None = None
    retries: int = 1
    quarantine_after: int = 3
    min_members: int = 0
    generate_deadline_s: float = 600.0
    grade_deadline_s: float = 60.0
    adaptive_grading: AdaptiveDeadline | None = None
    max_failures: int = 100
    filters: tuple[GroupFilter, ...] = ()
    batch_filter: BatchFilter | None = None
    over_provision: OverProvision | None = None
    concurrency: Mapping[str, int] = field(default_factory=dict)
    order: Literal["fifo", "longest_first"] = "fifo"
    router: str = "least_loaded"
    kv_tokens: int | None = None
    weigh_health: bool = False
    stragglers: Stragglers | None = None
    wait_deadline_s: float = 3600.0
    max_refills: int = 10

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = _LEAST.get(item.name)
            if least is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise _refused(item.name, value, f"an integer >= {least}")
            if item.name.endswith("_deadline_s") and not (is_finite(value) and value > 0):
                raise _refused(item.name, value, "a finite number > 0")
            kind = _OPTIONAL.get(item.name)
            if kind is not None and value is not None and not isinstance(value, kind):
                raise _refused(item.name, value, f"{kind.__name__} or None")
        bound = self.max_staleness
        if not (is_finite(bound) and 0 <= bound <= MOST_STALENESS):
            raise _refused("max_staleness", bound, f"a number from 0 to {MOST_STALENESS:,}")
        if self.stale not in ("drop", "requeue"):
            raise _refused("stale", self.stale, "'drop' or 'requeue'")
        if self.order not in ("fifo", "longest_first"):
            raise _refused("order", self.order, "'fifo' or 'longest_first'")
        if not isinstance(self.router, str) or self.router not in ROUTERS:
            raise _refused("router", self.router, f"one of {', '.join(sorted(ROUTERS))}")
        if self.kv_tokens is not None and not _is_count(self.kv_tokens):
            raise _refused("kv_tokens", self.kv_tokens, "an integer >= 1 or None")
        if not isinstance(self.weigh_health, bool):
            raise _refused("weigh_health", self.weigh_health, "True or False")
        if self.quarantine_after == 1:
            raise _refused("quarantine_after", 1, "0 for never or >= 2: the first loss blames all that ran")
        if self.min_members == 0:
            object.__setattr__(self, "min_members", min(2, self.group_size))
        if self.min_members > self.group_size:
            raise _refused("min_members", self.min_members, f"at most the group size of {self.group_size}")
        if not isinstance(self.concurrency, Mapping):
            raise _refused("concurrency", self.concurrency, "a mapping from tag to tickets at a time")
        for tag, most in self.concurrency.items():
            if not _is_count(most):
                raise _refused(f"concurrency[{tag!r}]", most, "an integer >= 1, or nothing would ever start")
        object.__setattr__(self, "concurrency", dict(self.concurrency))
        if not isinstance(self.filters, list | tuple):
            raise _refused("filters", self.filters, "a tuple of GroupFilter")
        object.__setattr__(self, "filters", tuple(self.filters))
        for position, each in enumerate(self.filters):
            if not isinstance(each, GroupFilter) or isinstance(each, type):
                raise _refused(f"filters[{position}]", each, "a GroupFilter")
        self._check_together()

    @property
    def pool(self) -> int:
        """Complete groups that a batch is chosen from: `groups_per_batch`, or more with a batch filter."""
        if self.batch_filter is None:
            return self.groups_per_batch
        return self.batch_filter.pool(self.groups_per_batch)

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

    @property
    def stops_at_cut(self) -> bool:
        """Whether what runs is stopped when a batch is complete."""
        return self.partial is not None and self.partial.stop_at_cut

    def fingerprint(self) -> dict[str, str]:
        """What decides which samples are trained on, by field, as text; a snapshot keeps it."""
        texts = {name: _as_text(getattr(self, name)) for name in _IDENTITY}
        if self.partial is not None:  # but for its deadline
            parts = self.partial
            texts["partial"] = f"max_versions={parts.max_versions}, stop_at_cut={parts.stop_at_cut}"
        return texts

    def _check_together(self) -> None:
        extra = self.over_provision
        if extra is not None and extra.defer and self.max_staleness > 0:
            raise _refused(
                "over_provision.defer",
                True,
                f"max_staleness 0, got {self.max_staleness}: an asynchronous run goes on with what a batch "
                "did without",
            )
        if extra is not None and extra.groups > self.groups_per_batch:
            raise _refused(
                "over_provision.groups",
                extra.groups,
                f"at most groups_per_batch, {self.groups_per_batch}",
            )
        if self.stops_at_cut and self.max_staleness == 0:
            raise _refused(
                "partial.stop_at_cut",
                True,
                "max_staleness > 0: a synchronous batch leaves nothing behind that could go on",
            )
        if self.stragglers is not None and self.stragglers.action == "move" and self.partial is None:
            raise _refused("stragglers.action", "move", "'duplicate' without `partial`: nothing could go on")
        if self.batch_filter is None:
            return
        if not isinstance(self.batch_filter, BatchFilter) or isinstance(self.batch_filter, type):
            raise _refused("batch_filter", self.batch_filter, "a BatchFilter")
        if self.max_staleness > 0 or self.extra_groups:
            raise _refused(
                "batch_filter",
                self.batch_filter,
                "none with max_staleness > 0 or over-provisioned groups, which choose by age and by speed",
            )
        if not _is_count(self.pool) or self.pool < self.groups_per_batch:
            raise _refused(
                "batch_filter.pool", self.pool, f"an integer >= groups_per_batch, {self.groups_per_batch}"
            )


_OPTIONAL = {
    "partial": PartialRollouts, "adaptive_grading": AdaptiveDeadline, "over_provision": OverProvision,
    "stragglers": Stragglers,
}  # fmt: skip


def _as_text(value: object) -> str:
    """The same in every process: what is no dataclass says no more than its type and name."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_as_text, value))})"
    if isinstance(value, GroupFilter | BatchFilter) and not is_dataclass(value):
        return f"{type(value).__qualname__} {value.name}"
    return repr(int(value)) if isinstance(value, int | float) and value == int(value) else repr(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _refused(name: str, got: object, allowed: str) -> SchedulerError:
    return SchedulerError(f"SchedulerPolicy.{name}: got {got!r}, allowed is {allowed}")
