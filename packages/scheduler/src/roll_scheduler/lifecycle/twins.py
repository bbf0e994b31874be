"""Two attempts of one ticket at a time: who ends first counts, the other is aborted. Part of the books.

One of the two is in the books; the other, the copy, takes its place when it wins or is left over. So a ticket
is in the books once, whatever becomes of its attempts, and ends once.
"""

from dataclasses import replace

from roll_scheduler.lifecycle.command import Abort, Command
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.flight import Flight
from roll_scheduler.lifecycle.ledger import Ledger
from roll_scheduler.rounds.ages import GroupAges
from roll_scheduler.ticket import TicketState

__all__ = ["Twins"]


class Twins:
    """The copies of one core.

    Args:
        flights: The books: tickets that have not ended, by id.
        departures: Where slots are given back.
        ledger: Where copies are counted.
        ages: Is told when another attempt takes a ticket's place.
    """

    def __init__(
        self, flights: dict[int, Flight], *, departures: Departures, ledger: Ledger, ages: GroupAges
    ) -> None:
        self._flights = flights
        self._departures = departures
        self._ledger = ledger
        self._ages = ages

    def copy(self, flight: Flight, replica: str, now: float) -> Flight:
        """A further attempt of a running ticket, on a replica of which a slot was taken for it."""
        flight.attempts += 1
        copy = Flight(replace(flight.ticket, attempt=flight.attempts - 1), flight.group, now)
        copy.attempts = flight.attempts
        copy.kept, copy.spans, copy.took = flight.kept, flight.spans, flight.took
        copy.failures, copy.avoid, copy.request = flight.failures, flight.avoid, flight.request
        copy.oldest, copy.copy = flight.oldest, True
        copy.twin, flight.twin = flight, copy
        self._departures.started(copy, replica)
        copy.state = TicketState.RUNNING
        self._ledger.totals["duplicates"] += 1
        return copy

    def alone(self, flight: Flight) -> list[Command]:
        """From now on a ticket has this attempt only: the other one, if there is one, is aborted."""
        other = flight.twin
        if other is None:
            return []
        if flight.copy:
            self._ledger.totals["duplicates_won"] += 1
        self._end(other)
        return [Abort(ticket=other.ticket, reason="duplicate")]

    def give_up(self, flight: Flight) -> bool:
        """An attempt ended badly; whether there is another one, which goes on. It has given its slot back."""
        if flight.twin is None:
            return False
        self._end(flight)
        return True

    def _end(self, flight: Flight) -> None:
        """An attempt ends, its twin is left over and in the books."""
        left = flight.twin
        assert left is not None  # both callers have looked
        self._departures.left(flight)
        flight.state = TicketState.DROPPED
        flight.twin = left.twin = None
        left.attempts = max(left.attempts, flight.attempts)
        if left.copy:
            left.copy = False
            group = left.group
            group.flights[left.ticket.member] = left
            self._flights[left.ticket.id] = left
            self._ages.changed(group)
