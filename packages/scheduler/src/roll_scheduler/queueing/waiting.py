"""The order in which waiting tickets get slots: first come, first served, or with an eye on prompts' KV."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from roll_scheduler.lifecycle.flight import Flight
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.queueing.prompt_homes import PromptHomes
from roll_scheduler.ticket import TicketState

__all__ = ["AffineOrder", "FifoOrder", "WaitingOrder", "first_waiting"]


class WaitingOrder(Protocol):
    """Tickets that have not started. Those that ended while they waited are skipped."""

    def extend(self, flights: Sequence[Flight]) -> None:
        """Tickets of one group come to wait."""
        ...

    def put_back(self, flights: Sequence[Flight]) -> None:
        """Tickets that had a slot come back, before all that wait for their first."""
        ...

    def head(self, now: float) -> Flight | None:
        """The ticket that is to start next, None if none waits. It stays until it is `taken`."""
        ...

    def taken(self, flight: Flight, replica: str) -> None:
        """The head got a slot."""
        ...


class FifoOrder:
    """Group by group and member by member."""

    def __init__(self) -> None:
        self._waiting: deque[Flight] = deque()

    def extend(self, flights: Sequence[Flight]) -> None:
        """Tickets come to wait; see `WaitingOrder`."""
        self._waiting.extend(flights)

    def put_back(self, flights: Sequence[Flight]) -> None:
        """Tickets come back; see `WaitingOrder`."""
        self._waiting.extendleft(reversed(flights))

    def head(self, now: float) -> Flight | None:
        """The ticket that has waited longest; see `WaitingOrder`."""
        return first_waiting(self._waiting)

    def taken(self, flight: Flight, replica: str) -> None:
        """The head got a slot; see `WaitingOrder`."""
        self._waiting.popleft()


class AffineOrder:
    """A slot that becomes free goes to the group whose prompt has its KV on that replica, if one waits there.

    Otherwise to the next group, as long as fewer groups are begun than there are replicas, and after that to
    the group that was begun first, wherever it is. No group is passed over by more than twice as many groups
    as there are replicas, and no slot is kept free.

    Args:
        replicas: Tells which have given slots back.
    """

    def __init__(self, replicas: ReplicaSlots) -> None:
        self._replicas = replicas
        self._homes = PromptHomes(replicas)
        self._back: deque[Flight] = deque()
        self._fresh: dict[int, deque[Flight]] = {}
        self._begun: dict[int, deque[Flight]] = {}
        self._began: dict[int, int] = {}
        self._count = 0

    def extend(self, flights: Sequence[Flight]) -> None:
        """Tickets of one group come to wait; see `WaitingOrder`."""
        if not flights:
            return
        group = flights[0].group.id
        for groups in (self._fresh, self._begun):
            if group in groups:  # it begins anew
                self._forget(groups, group)
        self._fresh[group] = deque(flights)

    def put_back(self, flights: Sequence[Flight]) -> None:
        """Tickets come back; see `WaitingOrder`."""
        self._back.extendleft(reversed(flights))

    def head(self, now: float) -> Flight | None:
        """See `WaitingOrder`."""
        if (flight := first_waiting(self._back)) is not None:
            return flight
        if (flight := self._late()) is not None:
            return flight
        for group in self._homes.offers():
            if (flight := self._first_of(self._begun, group)) is not None:
                return flight
        few = len(self._begun) < len(self._replicas)
        for groups in (self._fresh, self._begun) if few else (self._begun, self._fresh):
            while groups:
                if (flight := self._first_of(groups, next(iter(groups)))) is not None:
                    return flight
        return None

    def taken(self, flight: Flight, replica: str) -> None:
        """The head got a slot; see `WaitingOrder`."""
        self._homes.taken(replica)
        if self._back and self._back[0] is flight:
            self._back.popleft()
            return
        group = flight.group.id
        waiting = self._fresh.pop(group, None)
        if waiting is not None:
            self._begun[group], self._began[group] = waiting, self._count
            self._homes.settle(group, replica)
            self._count += 1
        self._begun[group].popleft()
        if not self._begun[group]:
            self._forget(self._begun, group)

    def _first_of(self, groups: dict[int, deque[Flight]], group: int) -> Flight | None:
        """First waiting ticket of a group; a group that has none is forgotten."""
        flight = first_waiting(groups[group])
        if flight is None:
            self._forget(groups, group)
        return flight

    def _late(self) -> Flight | None:
        """A ticket of the group that was begun first, if so many groups were begun since."""
        while self._begun:
            group = next(iter(self._begun))
            if self._count - self._began[group] <= 2 * len(self._replicas):
                return None
            if (flight := self._first_of(self._begun, group)) is not None:
                return flight
        return None

    def _forget(self, groups: dict[int, deque[Flight]], group: int) -> None:
        del groups[group]
        if groups is self._begun:
            del self._began[group]
            self._homes.leave(group)


def first_waiting(flights: deque[Flight]) -> Flight | None:
    """First ticket that still waits; those before it, which have ended, are removed."""
    while flights:
        if flights[0].state is TicketState.WAITING:
            return flights[0]
        flights.popleft()
    return None
