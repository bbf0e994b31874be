"""Why a batch is not complete yet: what each ticket that is waited for waits for itself. For watchdogs."""

from collections.abc import Mapping
from dataclasses import dataclass

from roll_scheduler.ticket import Ticket, TicketState

__all__ = ["Diagnosis", "LateTicket"]

HEAD = ("ticket", "group", "member", "state", "age s", "replica", "attempt", "tokens", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTicket:
    """A ticket that is waited for.

    Attributes:
        ticket: Its present attempt.
        state: WAITING, RUNNING or GRADING.
        age_s: Seconds in this state.
        replica: Where it runs, None unless RUNNING.
        tokens: Tokens that it is known to have: of earlier parts, or as reported.
        why: What it waits for, for example `"failed on 'a'; waits for another replica"`.
    """

    ticket: Ticket
    state: TicketState
    age_s: float
    replica: str | None
    tokens: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a batch waits for, see `RolloutScheduler.why`.

    Attributes:
        counts: Tickets by state.
        blocked: Why nothing can start, for example `"all replicas drain: 'a'"`; empty if that is not so.
        late: Those that are longest in their state, the longest first.
    """

    counts: Mapping[str, int]
    blocked: str
    late: tuple[LateTicket, ...]

    def text(self) -> str:
        """The counts, what blocks, and a table with a line for each late ticket."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        lines = [f"{counts or 'no ticket'}{f'; {self.blocked}' if self.blocked else ''}"]
        if not self.late:
            return lines[0]
        rows = [HEAD, *(_cells(late) for late in self.late)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[-1]]))
        return "\n".join(lines)


def _cells(late: LateTicket) -> tuple[str, ...]:
    ticket = late.ticket
    return (
        str(ticket.id),
        str(ticket.group),
        str(ticket.member),
        late.state.value,
        f"{late.age_s:.1f}",
        late.replica or "-",
        str(ticket.attempt),
        str(late.tokens),
        late.why,
    )
