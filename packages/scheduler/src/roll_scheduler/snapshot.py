"""What a scheduler has to remember for a resume. Made by `snapshot()`, taken by the constructors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = [
    "SchedulerSnapshot",
    "StatefulPart",
    "cursor",
    "snapshot_or_new",
    "stateful_parts",
]


FORMAT = 2
"""Of what is written now. Format 1 had no fingerprint, suspects, anchor and parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSnapshot:
    """Where to go on, for example

        SchedulerSnapshot(first_group=3, resolved=(4, 6), version=2, ends={"delivered": 40}, totals={...})

    Groups 0 to 2, 4 and 6 have ended; 3, 5 and all from 7 on are generated after the resume, with the same
    seeds; what partial completions had is not kept, they begin anew. A group counts as ended once it was
    delivered or dropped, so take a snapshot after the batch that was delivered last has been trained on.

    All of it survives JSON, where tuples become lists.

    Attributes:
        first_group: Oldest occurrence that has not ended.
        resolved: Later ones that have, sorted.
        deferred: Those that wait for a long round, sorted.
        version: Policy version.
        ends: Tickets that ended, by how.
        totals: Counts over the run.
        suspects: Groups that are blamed for losses of replicas: id and losses.
        grading_anchor_s: Longest grading of a correct answer, for an adaptive deadline; None before one.
        fingerprint: What decides which samples are trained on, by name, as text; a resume under another one
            is refused. Empty where it is not known.
        parts: State of further parts, by name.
        format: Version of this format.

    Raises:
        SchedulerError: If a number is no integer >= 0, a resolved or deferred group comes before the first or
            is both, or the format is not known.
    """

    first_group: int = 0
    resolved: tuple[int, ...] = ()
    deferred: tuple[int, ...] = ()
    version: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    suspects: tuple[tuple[int, int], ...] = ()
    grading_anchor_s: float | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        if isinstance(self.format, bool) or self.format not in range(1, FORMAT + 1):
            raise SchedulerError(f"SchedulerSnapshot.format: got {self.format}, allowed is 1 to {FORMAT}")
        self._check_kinds()
        for name in ("resolved", "deferred"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "suspects", tuple((group, losses) for group, losses in self.suspects))
        counts = {**self.ends, **self.totals, "first_group": self.first_group, "version": self.version}
        counts |= {f"losses of group {group}": losses for group, losses in self.suspects}
        for name, value in counts.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SchedulerError(f"SchedulerSnapshot: {name} is {value!r}, allowed is an integer >= 0")
        for name, groups in (("resolved", self.resolved), ("deferred", self.deferred)):
            wrong = [group for group in groups if not isinstance(group, int) or group < self.first_group]
            if wrong:
                raise SchedulerError(
                    f"SchedulerSnapshot.{name}: got group {wrong[0]!r}, allowed are integers from "
                    f"first_group, {self.first_group}, on"
                )
        both = sorted(set(self.resolved) & set(self.deferred))
        if both:
            raise SchedulerError(
                f"SchedulerSnapshot: group {both[0]} is both resolved and deferred, allowed is one of them"
            )

    def _check_kinds(self) -> None:
        kinds = {
            "resolved": Sequence, "deferred": Sequence, "suspects": Sequence, "ends": Mapping,
            "totals": Mapping, "fingerprint": Mapping, "parts": Mapping,
        }  # fmt: skip
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, str):
                allowed = "a mapping" if kind is Mapping else "a sequence"
                raise SchedulerError(f"SchedulerSnapshot.{name}: got {value!r}, allowed is {allowed}")
        anchor = self.grading_anchor_s
        if anchor is not None and not (is_finite(anchor) and anchor >= 0):
            raise SchedulerError(
                f"SchedulerSnapshot.grading_anchor_s: got {anchor!r}, allowed is a number >= 0 or None"
            )
        for suspect in self.suspects:
            if not isinstance(suspect, Sequence) or len(suspect) != 2:
                raise SchedulerError(
                    f"SchedulerSnapshot.suspects: got {suspect!r}, allowed are a group and its losses"
                )

    def check(self, fingerprint: Mapping[str, str]) -> None:
        """Refuses a resume under another configuration.

        Args:
            fingerprint: Of the scheduler that is to go on.

        Raises:
            SchedulerError: Something that decides which samples are trained on differs; it names all of it.
        """
        differing = [
            f"{name} is {self.fingerprint[name]} in the snapshot, {value} now"
            for name, value in fingerprint.items()
            if self.fingerprint.get(name, value) != value
        ]
        if differing:
            raise SchedulerError(f"resume: the snapshot is of another configuration: {'; '.join(differing)}")


@runtime_checkable
class StatefulPart(Protocol):
    """Something whose state goes into the snapshot, for example a curriculum."""

    def state(self) -> Mapping[str, Any]:
        """What JSON can hold, from which `restore` makes the same again."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave, maybe after JSON."""
        ...


def snapshot_or_new(resume: object) -> SchedulerSnapshot:
    """Where a scheduler begins: at a snapshot, or, for None, with group 0 at version 0.

    Raises:
        SchedulerError: If it is something else, for example a dict that has to be made a snapshot first.
    """
    if resume is None:
        return SchedulerSnapshot()
    if not isinstance(resume, SchedulerSnapshot):
        raise SchedulerError(
            f"resume: got {type(resume).__name__}, allowed is None or a SchedulerSnapshot; from JSON: "
            "SchedulerSnapshot(**fields)"
        )
    return resume


def stateful_parts(
    parts: Mapping[str, StatefulPart], *, reserved: Collection[str], resume: SchedulerSnapshot | None
) -> dict[str, StatefulPart]:
    """The caller's parts, each with the state that was saved under its name.

    Args:
        parts: By name.
        reserved: Names that are taken.
        resume: What to go on from; None begins anew.

    Raises:
        SchedulerError: If a name is taken or no text, a part has not the methods of `StatefulPart`, or the
            names of the snapshot differ; nothing is restored then.
    """
    for name, part in parts.items():
        if not isinstance(name, str) or name in reserved:
            taken = " and ".join(map(repr, reserved))
            raise SchedulerError(f"parts: got the name {name!r}, allowed is any other text than {taken}")
        if not isinstance(part, StatefulPart) or isinstance(part, type):
            raise SchedulerError(f"parts[{name!r}]: got {part!r}, allowed is a StatefulPart")
    if resume is None:
        return dict(parts)
    saved = {name: state for name, state in resume.parts.items() if name not in reserved}
    if parts.keys() != saved.keys():
        raise SchedulerError(
            f"resume: the snapshot has parts {sorted(saved)}, the scheduler {sorted(parts)}; "
            "allowed are the same names"
        )
    for name, part in parts.items():
        part.restore(saved[name])
    return dict(parts)


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
