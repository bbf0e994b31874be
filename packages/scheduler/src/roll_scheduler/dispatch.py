"""The order in which waiting tickets get slots. Used by the core."""

from collections import deque
from collections.abc import Sequence

from roll_scheduler.flight import Flight
from roll_scheduler.placement import ReplicaSlots
from roll_scheduler.ticket import TicketState

__all__ = ["DispatchQueue"]


class DispatchQueue:
    """Waiting tickets: retries first, then group by group and member by member.

    A retry waits for a replica that it has not failed on, and lets others pass meanwhile. Tickets that ended
    while they waited are skipped.

    Args:
        replicas: Where slots are taken.
    """

    def __init__(self, replicas: ReplicaSlots) -> None:
        self._replicas = replicas
        self._waiting: deque[Flight] = deque()
        self._retrying: deque[Flight] = deque()

    def extend(self, flights: Sequence[Flight]) -> None:
        """Queues new tickets."""
        self._waiting.extend(flights)

    def take_back(self, flights: Sequence[Flight]) -> None:
        """Queues tickets whose replica was lost, in this order, before all that wait for their first slot."""
        self._waiting.extendleft(flight for flight in reversed(flights) if not flight.avoid)
        self._retrying.extend(flight for flight in flights if flight.avoid)

    def retry(self, flight: Flight) -> None:
        """Queues a ticket that failed; its `avoid` names the replicas it failed on."""
        self._retrying.append(flight)

    def pop(self) -> tuple[Flight, str] | None:
        """The next ticket and the replica of which a slot was taken for it, None if nothing can start."""
        if self._replicas.full:
            return None
        for flight in tuple(self._retrying):
            if flight.state is not TicketState.WAITING:
                self._retrying.remove(flight)
            elif (replica := self._replicas.take(flight.avoid)) is not None:
                self._retrying.remove(flight)
                return flight, replica
        while self._waiting:
            if self._waiting[0].state is TicketState.WAITING:
                replica = self._replicas.take()
                return None if replica is None else (self._waiting.popleft(), replica)
            self._waiting.popleft()
        return None
