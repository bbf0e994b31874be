"""Tickets that wait to be sent out, and who of them may go now. Used by the core and its books."""

from collections.abc import Sequence

from roll_scheduler.health.quarantine import Quarantine
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.queueing.dispatch import DispatchQueue
from roll_scheduler.queueing.environment_limits import EnvironmentLimits
from roll_scheduler.queueing.placement import ReplicaSlots

__all__ = ["Departures"]


class Departures:
    """The queue for slots, with what keeps a ticket out of it: a hold, its environment's limit, a suspicion.

    Args:
        replicas: Where slots are taken.
        queue: The order of those that may go.
        quarantine: Suspects, who wait apart.
        limits: How many of an environment may be in the queue or running.

    Attributes:
        held: Whether nothing may go now.
    """

    def __init__(
        self,
        replicas: ReplicaSlots,
        queue: DispatchQueue,
        *,
        quarantine: Quarantine,
        limits: EnvironmentLimits,
    ) -> None:
        self._replicas = replicas
        self._queue = queue
        self._quarantine = quarantine
        self._limits = limits
        self.held = False
        self._on: dict[str, dict[int, Flight]] = {}

    @property
    def slots(self) -> int:
        """Slots of all live replicas, free or not."""
        return self._replicas.slots

    def add(self, flights: Sequence[Flight]) -> None:
        """The tickets of a new group wait."""
        if self._limits:
            flights = self._limits.let_through(flights)
        if flights:
            self._queue.extend(flights)

    def take_back(self, flights: Sequence[Flight]) -> None:
        """Tickets that were under way wait again, before all that wait for their first slot."""
        innocent = []
        for flight in flights:
            if self._quarantine.suspects(flight):
                self._quarantine.wait(flight)
            else:
                innocent.append(flight)
        self._queue.take_back(innocent)

    def add_first(self, flights: Sequence[Flight]) -> None:
        """The tickets of a group that begins anew wait, before all that wait for their first slot."""
        self.take_back(self._limits.let_through(flights) if self._limits else flights)

    def retry(self, flight: Flight) -> None:
        """A ticket that failed waits for a replica that it has not failed on."""
        if self._quarantine.suspects(flight):
            self._quarantine.wait(flight)
        else:
            self._queue.retry(flight)

    def next(self, now: float) -> tuple[Flight, str] | None:
        """The next ticket and the replica of which a slot was taken for it, None if nothing can start."""
        if self.held or self._replicas.full:
            return None
        quarantine = self._quarantine
        if quarantine.waiting and (placed := quarantine.place(self._replicas)) is not None:
            return placed
        while (placed := self._queue.pop(now)) is not None:
            flight, replica = placed
            if not (flight.losses or flight.group.losses):
                return placed
            self._replicas.release(replica, flight.request)
            quarantine.wait(flight)
            if (placed := quarantine.place(self._replicas)) is not None:
                return placed
        return None

    def remember(self, group: FlightGroup) -> None:
        """A group ends that will begin anew, with what it is blamed for."""
        self._quarantine.remember(group)

    def started(self, flight: Flight, replica: str) -> None:
        """A ticket runs on a replica."""
        flight.replica = replica
        self._on.setdefault(replica, {})[flight.ticket.id] = flight

    def on(self, replica: str) -> list[Flight]:
        """Tickets that run on a replica, in the order in which they started there."""
        return list(self._on.get(replica, {}).values())

    def lost(self, replica: str) -> list[Flight]:
        """A replica is gone: its tickets, in the order of their ids, have no slot there any more."""
        flights = self._on.pop(replica, {})
        return [flights[ticket] for ticket in sorted(flights)]

    def left(self, flight: Flight) -> None:
        """A ticket gives its slot back."""
        replica = flight.replica
        if replica is not None:
            self._replicas.release(replica, flight.request)
            del self._on[replica][flight.ticket.id]
            if flight.cap:
                self._quarantine.left(flight, replica)
            flight.replica = None

    def ended(self, flight: Flight) -> None:
        """A ticket is generated or has ended: another one of its environment may go."""
        if flight.admitted:
            self._queue.take_back(self._limits.left(flight))
