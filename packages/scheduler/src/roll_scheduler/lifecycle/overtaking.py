"""What would end sooner on another replica is sent there too, or moved. Used by the core."""

from roll_scheduler.health.straggler_watch import StragglerWatch
from roll_scheduler.lifecycle.attempts import Attempts
from roll_scheduler.lifecycle.command import Command
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.groups import GroupBook
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.ticket import TicketState

__all__ = ["Overtaking"]


class Overtaking:
    """Gives slots that are free while nothing waits to stragglers.

    Args:
        watch: Says which they are.
        replicas: Where slots are taken.
        departures: Whether anything may start.
        book: Whether anything waits.
        attempts: Duplicates and moves.
    """

    def __init__(
        self,
        watch: StragglerWatch,
        *,
        replicas: ReplicaSlots,
        departures: Departures,
        book: GroupBook,
        attempts: Attempts,
    ) -> None:
        self._watch = watch
        self._replicas = replicas
        self._departures = departures
        self._book = book
        self._attempts = attempts

    @property
    def next_at(self) -> float | None:
        """When to look next, None as long as no slot is free or nothing may start."""
        return None if self._replicas.full or self._departures.held else self._watch.next_at

    def arm(self, now: float) -> None:
        """Something was sent out, maybe with more to come: whoever has not looked for long looks later."""
        if self._watch.next_at + self._watch.rule.every_s < now:
            self._watch.next_at = now + self._watch.rule.every_s

    def go(self, now: float) -> list[Command]:
        """What is to be done now, if it is time."""
        at = self.next_at
        if at is None or at > now:
            return []
        if any(flight.state is TicketState.WAITING for flight in self._book.flights.values()):
            self._watch.next_at = now + self._watch.rule.every_s
            return []
        commands: list[Command] = []
        for flight, avoid in self._watch.look(now):
            if self._watch.rule.action == "move":
                commands += self._attempts.move(flight, now)
            elif not self._attempts.may_go_on(flight):
                continue
            elif (replica := self._replicas.take(avoid, flight.request)) is not None:
                if replica in avoid:  # no other takes anything
                    self._replicas.release(replica, flight.request)
                else:
                    commands.append(self._attempts.duplicate(flight, replica, now))
        return commands
