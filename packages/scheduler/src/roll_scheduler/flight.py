"""Mutable records that the core keeps: a ticket and its group on their way, and deadlines of tickets."""

import heapq
from collections import deque
from collections.abc import Iterable

from roll_scheduler.ticket import PendingTicket, Ticket, TicketState

__all__ = ["DeadlineQueue", "Flight", "FlightGroup", "longest_pending"]


class Flight:
    """A ticket that was admitted; `ticket` is replaced by the one of the next attempt.

    Attributes:
        oldest: Version at which it was sent out; once it is generated, the oldest that sampled a token.
        avoid: Replicas on which it failed.
        took: Seconds that its generation took, once it is generated.
    """

    __slots__ = (
        "avoid",
        "failures",
        "group",
        "oldest",
        "replica",
        "since",
        "state",
        "ticket",
        "took",
        "truncated",
        "value",
    )

    def __init__(self, ticket: Ticket, group: "FlightGroup", now: float) -> None:
        self.ticket = ticket
        self.group = group
        self.state = TicketState.WAITING
        self.since = now
        self.replica: str | None = None
        self.failures = 0
        self.avoid: frozenset[str] = frozenset()
        self.oldest = 0
        self.truncated = False
        self.took = 0.0
        self.value = 0.0

    def pending(self, now: float) -> PendingTicket:
        """How long it has been in its state."""
        return PendingTicket(
            ticket=self.ticket, state=self.state, age_s=now - self.since, replica=self.replica
        )


class FlightGroup:
    """A group that was admitted and has not ended.

    Attributes:
        flights: In member order.
        unsettled: Members that are neither READY nor DROPPED.
        settled: Members that are READY.
        lost: Members that are out of retries.
        oldest: Oldest sampled version of its members, valid once it is complete.
        sent: What `sent_at` says, while it is not complete; kept by `GroupAges`.
    """

    __slots__ = ("flights", "id", "lost", "oldest", "sent", "settled", "unsettled")

    def __init__(self, group: int, size: int) -> None:
        self.id = group
        self.flights: list[Flight] = []
        self.unsettled = size
        self.settled = 0
        self.lost = 0
        self.oldest = 0
        self.sent: int | None = None

    def sampled_at(self) -> int | None:
        """Oldest sampled version of the members that are generated, None if there is none."""
        done = (TicketState.GRADING, TicketState.READY)
        return min((flight.oldest for flight in self.flights if flight.state in done), default=None)

    def sent_at(self) -> int | None:
        """Oldest version of the members that are running or generated, None if there is none."""
        under_way = (TicketState.RUNNING, TicketState.GRADING, TicketState.READY)
        return min((flight.oldest for flight in self.flights if flight.state in under_way), default=None)


class DeadlineQueue:
    """Deadlines of tickets in one state; all have the same length, so that the queue is in order.

    Args:
        state: State that a ticket has to leave before its deadline.
        seconds: Length of the deadline.
    """

    def __init__(self, state: TicketState, seconds: float) -> None:
        self._state = state
        self.seconds = seconds
        self._entries: deque[tuple[float, Ticket, Flight]] = deque()

    def push(self, flight: Flight, now: float) -> None:
        """Starts the deadline of a ticket that entered the state now."""
        self._entries.append((now + self.seconds, flight.ticket, flight))

    def next_at(self) -> float | None:
        """Time of the earliest deadline that still matters."""
        entries = self._entries
        while entries:
            at, ticket, flight = entries[0]
            if flight.ticket is ticket and flight.state is self._state:
                return at
            entries.popleft()
        return None

    def pop_expired(self, now: float) -> list[Flight]:
        """Removes and returns the tickets whose deadline is now or earlier, earliest first."""
        expired = []
        while (at := self.next_at()) is not None and at <= now:
            expired.append(self._entries.popleft()[2])
        return expired


def longest_pending(flights: Iterable[Flight], most: int | None) -> list[Flight]:
    """Those that are being waited for, the one that is longest in its state first; at most `most` of them."""
    waited_for = [flight for flight in flights if flight.state is not TicketState.READY]
    if most is None:
        return sorted(waited_for, key=lambda flight: flight.since)
    return heapq.nsmallest(most, waited_for, key=lambda flight: flight.since)
