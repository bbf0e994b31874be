"""What the scheduler core asks of whoever runs it: a live driver or a simulator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from roll_scheduler.partial import VersionSpan
from roll_scheduler.ticket import Ticket

__all__ = ["Abort", "Command", "Cut", "Defer", "Deliver", "Drop", "Generate", "Grade", "Stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Start the generation of a ticket on a replica.

    If `ticket.continues` is 0 nothing is needed any more of what earlier attempts generated; otherwise it
    goes on from that many tokens of them.
    """

    ticket: Ticket
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Start the grading of a generated ticket."""

    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop the generation or grading of this attempt; a result of it that still arrives is ignored.

    `reason` is `"deadline"`, `"stop"` (a deadline too, that of a stop), `"replica"`, `"pause"`, `"surplus"`
    (others were quicker), `"duplicate"` (another attempt of the ticket was quicker), `"closed"`,
    `"requeued"`, or the reason for which its group was dropped.
    """

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End this generation soon and keep what it has: the event `stopped` is to follow, or `generated` if it
    was done already. Only with partial rollouts.

    `reason` is `"cut"` (the batch is complete), `"pause"`, `"replica"` (it leaves as planned) or
    `"straggler"` (it would end sooner elsewhere).
    """

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A group ended without being delivered; what is kept for it may be forgotten."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """A group begins anew, in a long round or because it was stale: its prompt is needed again, its
    completions are not."""

    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """A group goes into the batch with these members, sorted by member index.

    `spans` has the versions of the tokens of each member, with partial rollouts; otherwise it is empty.
    """

    group: int
    members: tuple[Ticket, ...]
    spans: tuple[tuple[VersionSpan, ...], ...] = ()


Command: TypeAlias = Generate | Grade | Abort | Stop | Drop | Defer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One batch as the core cuts it: deliveries sorted by group, and the counts since the cut before.

    `commands` end what the batch did without; they are carried out after the deliveries were taken.
    """

    commands: tuple[Command, ...] = ()
    deliveries: tuple[Deliver, ...]
    version: int
    failures: Mapping[str, int]
    dropped: Mapping[str, int]
