"""Prompts that may be what kills replicas: who is blamed for a loss, and with whom suspects may run again.

Used by `Departures`. When a replica is lost, everything that ran on it is a suspect; if a suspect was among
it already, only suspects are blamed. Until they are cleared, by ending well, suspects run with ever fewer
others of their kind beside them: after l losses at most one 2^l-th of a replica's slots goes to suspects, and
after `after` - 1 losses a single one. Who is blamed once more while it runs quite alone is dropped with its
group. Where others run beside it that are not suspected, one of them may have been it: all are blamed then,
and it takes `after` more such losses. So an innocent ticket has to be there at several losses in a row.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Set

from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.routers.router import ANY
from roll_scheduler.ticket import TicketState

__all__ = ["Quarantine"]

TRIED_AT_ONCE = 4
"""Waiting suspects that one event looks at; who found no place goes to the end."""


class Quarantine:
    """Suspects that wait, and those that run.

    Args:
        after: Losses with which a ticket or group is dropped, >= 2; 0 suspects nobody.
        losses: What groups were blamed for before a resume, by id.

    Attributes:
        waiting: Suspects that wait for a place.
    """

    def __init__(self, after: int, losses: Mapping[int, int]) -> None:
        self._after = after
        self._before = dict(losses)
        self.waiting: deque[Flight] = deque()
        self._caps: dict[str, list[int]] = {}
        self._slots: dict[str, int] = {}
        self._closed: dict[int, set[str]] = {}

    def losses(self, groups: Iterable[FlightGroup]) -> tuple[tuple[int, int], ...]:
        """Losses that groups are blamed for, by id, sorted; for a snapshot."""
        blamed = {group.id: group.losses for group in groups if group.losses}
        return tuple(sorted((self._before | blamed).items()))

    def opened(self, group: FlightGroup) -> None:
        """A group begins; what it was blamed for before a resume counts."""
        if self._before:
            group.losses = self._before.pop(group.id, 0)

    def remember(self, group: FlightGroup) -> None:
        """A group ends that will begin anew: what it is blamed for counts then."""
        if group.losses:
            self._before[group.id] = group.losses

    def up(self, name: str, slots: int) -> None:
        """A replica joined."""
        self._slots[name], self._caps[name] = slots, []
        self._changed(name)

    def down(self, name: str) -> None:
        """A replica left."""
        del self._slots[name], self._caps[name]
        for closed in self._closed.values():
            closed.discard(name)

    def blame(self, flights: Iterable[Flight]) -> list[FlightGroup]:
        """These ran on a replica that was lost; returns the groups that are to be dropped for it."""
        if not self._after:
            return []
        present = list(flights)
        blamed = [flight for flight in present if self.suspects(flight)]
        if all(self._level(flight) == self._after - 1 for flight in blamed):
            blamed = present
        groups = {flight.group.id: flight.group for flight in blamed}
        for flight in blamed:
            flight.losses += 1
        for group in groups.values():
            group.losses += 1
        # Alone, what others of its group were there for counts; in company a group's many members do not.
        alone = len(present) == 1
        guilty = {
            flight.group.id
            for flight in blamed
            if (alone and self._level(flight) >= self._after) or flight.losses >= 2 * self._after - 1
        }
        return [group for group in groups.values() if group.id in guilty]

    def suspects(self, flight: Flight) -> bool:
        """Whether a ticket is a suspect."""
        return bool(self._after and (flight.losses or flight.group.losses))

    def wait(self, flight: Flight) -> None:
        """A suspect waits for a place."""
        self.waiting.append(flight)

    def place(self, replicas: ReplicaSlots) -> tuple[Flight, str] | None:
        """The next suspect that may run and the replica of which a slot was taken for it, if there is one."""
        for _ in range(min(len(self.waiting), TRIED_AT_ONCE)):
            flight = self.waiting.popleft()
            if flight.state is not TicketState.WAITING:
                continue
            level = min(self._level(flight), self._after - 1)
            avoid = self._shunned(level, flight, replicas)
            if avoid is not None and (replica := replicas.take(avoid)) is not None:
                flight.request = ANY
                flight.cap = self._cap(level, self._slots[replica])
                self._caps[replica].append(flight.cap)
                self._changed(replica)
                return flight, replica
            self.waiting.append(flight)
        return None

    def left(self, flight: Flight, replica: str) -> None:
        """A suspect leaves its replica, which is still there."""
        if flight.cap:
            self._caps[replica].remove(flight.cap)
            self._changed(replica)
            flight.cap = 0

    def cleared(self, flight: Flight) -> None:
        """A suspect ended well: what it was blamed for does not count any more."""
        flight.group.losses = max(0, flight.group.losses - flight.losses)
        flight.losses = 0

    def _level(self, flight: Flight) -> int:
        return max(flight.losses, flight.group.losses)

    def _shunned(self, level: int, flight: Flight, replicas: ReplicaSlots) -> Set[str] | None:
        """Replicas on which a suspect must not run, those that it failed on too if others are left; None if
        it may run nowhere."""
        if level not in self._closed:
            self._closed[level] = {
                name for name, slots in self._slots.items() if not self._joins(self._cap(level, slots), name)
            }
        closed = self._closed[level]
        never = closed | replicas.draining if replicas.draining else closed
        if len(never) == len(self._slots):
            return None
        failed_on = flight.avoid & self._slots.keys()
        return closed | failed_on if failed_on and len(never | failed_on) < len(self._slots) else closed

    def _changed(self, name: str) -> None:
        """Suspects came to or left a replica: whether others may join them is looked at anew."""
        for level, closed in self._closed.items():
            joins = self._joins(self._cap(level, self._slots[name]), name)
            (closed.discard if joins else closed.add)(name)

    def _cap(self, level: int, slots: int) -> int:
        return 1 if level >= self._after - 1 else max(1, slots >> level)

    def _joins(self, cap: int, name: str) -> bool:
        caps = self._caps[name]
        return len(caps) < min([cap, *caps])
