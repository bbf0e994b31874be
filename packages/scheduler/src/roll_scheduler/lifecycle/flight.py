"""Mutable records that the core keeps: a ticket and its group on their way, and deadlines of tickets."""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable
from itertools import count
from typing import Any

from roll_scheduler.partial import VersionSpan
from roll_scheduler.prompts.traits import NO_TRAITS, PromptTraits
from roll_scheduler.routers.router import Request
from roll_scheduler.ticket import PendingTicket, Ticket, TicketState

__all__ = ["DeadlineQueue", "Flight", "FlightGroup", "VaryingDeadlineQueue", "longest_pending"]

PLAIN = Request()

ENTRIES = 256
"""Deadlines that a queue keeps before it looks for those that do not matter any more."""


class Flight:
    """A ticket that was admitted; `ticket` is replaced by the one of the next attempt.

    Attributes:
        replica: Where it has a slot; None unless it is running, or when its replica leaves while it stops.
        oldest: Version at which it was sent out; once it is generated, or kept in part, the oldest that
            sampled a token.
        avoid: Replicas on which it failed.
        aborted_s: Seconds that its generation had taken when it was aborted for good, 0 if it was not.
        took: Seconds that its generation took, once it is generated; so far, while it is partial.
        kept: Tokens of earlier attempts that it goes on from.
        spans: Versions of the tokens that are kept, and in the end of all.
        stopping: Whether it was asked to stop.
        losses: Losses of replicas that it is blamed for.
        cap: Suspects that may run on its replica as long as it does; 0 if it is none.
        admitted: Whether it counts against its tag's limit.
        request: What the router was told of it when its slot was taken.
        attempts: Attempts that there were, so that each has a number of its own.
        twin: Another attempt of the same ticket that runs at the same time, None for none.
        copy: Whether it is the one of the two that is not in the books.
        reported: Tokens that the caller says the attempt has, with those of earlier ones.
        reported_at: When it said so.
    """

    __slots__ = (
        "aborted_s",
        "admitted",
        "attempts",
        "avoid",
        "cap",
        "copy",
        "failures",
        "group",
        "kept",
        "losses",
        "oldest",
        "replica",
        "reported",
        "reported_at",
        "request",
        "since",
        "spans",
        "state",
        "stopping",
        "ticket",
        "took",
        "truncated",
        "twin",
        "value",
    )

    def __init__(self, ticket: Ticket, group: "FlightGroup", now: float) -> None:
        self.ticket = ticket
        self.group = group
        self.state = TicketState.WAITING
        self.since = now
        self.replica: str | None = None
        self.request = PLAIN
        self.failures = 0
        self.avoid: frozenset[str] = frozenset()
        self.oldest = 0
        self.kept = 0
        self.spans: tuple[VersionSpan, ...] = ()
        self.stopping = False
        self.losses = 0
        self.cap = 0
        self.admitted = False
        self.truncated = False
        self.took = 0.0
        self.aborted_s = 0.0
        self.value = 0.0
        self.attempts = ticket.attempt + 1
        self.twin: Flight | None = None
        self.copy = False
        self.reported = 0
        self.reported_at = -math.inf

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
        losses: Losses of replicas that it is blamed for.
        tag: Its environment, for the limits of the policy.
        traits: What is known of its prompt.
    """

    __slots__ = (
        "flights", "id", "losses", "lost", "oldest", "sent", "settled", "tag", "traits", "unsettled"
    )  # fmt: skip

    def __init__(self, group: int, size: int) -> None:
        self.id = group
        self.flights: list[Flight] = []
        self.unsettled = size
        self.settled = 0
        self.lost = 0
        self.oldest = 0
        self.sent: int | None = None
        self.losses = 0
        self.tag = ""
        self.traits: PromptTraits = NO_TRAITS

    @property
    def key(self) -> Hashable:
        """What its prompt is known by: the key of its traits, or the group itself."""
        return self.id if self.traits.key is None else self.traits.key

    def sampled_at(self) -> int | None:
        """Oldest sampled version of the members that are generated, None if there is none."""
        done = (TicketState.GRADING, TicketState.READY)
        return min((flight.oldest for flight in self.flights if flight.state in done), default=None)

    def sent_at(self) -> int | None:
        """Oldest version of the members that are running, generated, or kept in part; None if none is."""
        under_way = (TicketState.RUNNING, TicketState.GRADING, TicketState.READY)
        return min(
            (
                flight.oldest
                for flight in self.flights
                if flight.state in under_way or (flight.kept and flight.state is TicketState.WAITING)
            ),
            default=None,
        )


class DeadlineQueue:
    """Deadlines of tickets in one state; all have the same length, so that the queue is in order.

    Args:
        state: State that a ticket has to leave before its deadline.
        seconds: Length of the deadline.
    """

    def __init__(self, state: TicketState, seconds: float) -> None:
        self._state = state
        self.seconds = seconds
        # Time, ticket and flight of each, one after the other: tuples would be work for the collector.
        self._entries: deque[Any] = deque()
        self._enough = 3 * ENTRIES

    def push(self, flight: Flight, now: float) -> None:
        """Starts the deadline of a ticket that entered the state now."""
        entries = self._entries
        entries.extend((now + self.seconds, flight.ticket, flight))
        if len(entries) > self._enough:
            flat = iter(entries)
            self._entries = entries = deque()
            for each in zip(flat, flat, flat, strict=True):
                if _awaited(self._state, *each[1:]):
                    entries.extend(each)
            self._enough = 2 * len(entries) + 3 * ENTRIES

    def next_at(self) -> float | None:
        """Time of the earliest deadline that still matters."""
        entries, state = self._entries, self._state
        while entries:
            flight: Flight = entries[2]
            if flight.ticket is entries[1] and flight.state is state:
                at: float = entries[0]
                return at
            self._pop()
        return None

    def pop_expired(self, now: float) -> list[Flight]:
        """Removes and returns the tickets whose deadline is now or earlier, earliest first."""
        expired = []
        while (at := self.next_at()) is not None and at <= now:
            expired.append(self._pop())
        return expired

    def _pop(self) -> Flight:
        entries = self._entries
        entries.popleft()
        entries.popleft()
        flight: Flight = entries.popleft()
        return flight


class VaryingDeadlineQueue:
    """Deadlines of tickets in one state, of lengths that differ.

    Args:
        state: State that a ticket has to leave before its deadline.
    """

    def __init__(self, state: TicketState) -> None:
        self._state = state
        self._entries: list[tuple[float, int, float, Ticket, Flight]] = []
        self._order = count()
        self._enough = ENTRIES

    def push(self, flight: Flight, now: float, seconds: float) -> None:
        """Starts the deadline of a ticket that entered the state now."""
        heapq.heappush(self._entries, (now + seconds, next(self._order), seconds, flight.ticket, flight))
        if len(self._entries) > self._enough:
            self._entries = [each for each in self._entries if _awaited(self._state, *each[3:])]
            heapq.heapify(self._entries)
            self._enough = 2 * len(self._entries) + ENTRIES

    def next_at(self) -> float | None:
        """Time of the earliest deadline that still matters."""
        entries = self._entries
        while entries:
            at, _, _, ticket, flight = entries[0]
            if _awaited(self._state, ticket, flight):
                return at
            heapq.heappop(entries)
        return None

    def pop_expired(self, now: float) -> list[tuple[Flight, float]]:
        """Removes and returns tickets whose deadline is now or earlier, with its length, earliest first."""
        expired = []
        while (at := self.next_at()) is not None and at <= now:
            _, _, seconds, _, flight = heapq.heappop(self._entries)
            expired.append((flight, seconds))
        return expired


def longest_pending(flights: Iterable[Flight], most: int | None) -> list[Flight]:
    """Those that are being waited for, the one that is longest in its state first; at most `most` of them."""
    waited_for = [flight for flight in flights if flight.state is not TicketState.READY]
    if most is None:
        return sorted(waited_for, key=lambda flight: flight.since)
    return heapq.nsmallest(most, waited_for, key=lambda flight: flight.since)


def _awaited(state: TicketState, ticket: Ticket, flight: Flight) -> bool:
    """Whether an attempt is still in the state that its deadline is for."""
    return flight.ticket is ticket and flight.state is state
