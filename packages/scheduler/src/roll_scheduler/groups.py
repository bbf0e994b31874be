"""Groups on their way: opened, completed, dropped, deferred, cut into batches. Used by the core."""

import math
from dataclasses import replace

import numpy as np

from roll_scheduler.ages import GroupAges
from roll_scheduler.command import Abort, Command, Cut, Defer, Deliver, Drop
from roll_scheduler.flight import Flight, FlightGroup
from roll_scheduler.ledger import FAILED, Ledger
from roll_scheduler.placement import ReplicaSlots
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.staleness import staleness
from roll_scheduler.ticket import Ticket, TicketState, ticket_seed

__all__ = ["GroupBook"]

SURPLUS = "surplus"


class GroupBook:
    """Every group that was admitted and has not ended, and the tickets of them.

    Args:
        policy: Sizes and filters.
        replicas: Where aborted tickets give their slot back.
        ledger: Where ends are counted.
        run_seed: Seed that ticket seeds derive from.

    Attributes:
        groups: By id.
        ready: Those of them that are complete.
        flights: Tickets that have not ended, by id.
        deferred: Groups that wait for a long round: the attempt that their tickets begin with, by id.
        ages: Their versions.
        mean_staleness: Of the batch that was cut last.
    """

    def __init__(
        self, policy: SchedulerPolicy, *, replicas: ReplicaSlots, ledger: Ledger, run_seed: int
    ) -> None:
        self._policy = policy
        self._replicas = replicas
        self._ledger = ledger
        self._run_seed = run_seed
        self.groups: dict[int, FlightGroup] = {}
        self.ready: dict[int, FlightGroup] = {}
        self.flights: dict[int, Flight] = {}
        self.deferred: dict[int, int] = {}
        self.ages = GroupAges()
        self.mean_staleness = 0.0

    def open(self, group_id: int, now: float, *, members: int, attempt: int = 0) -> list[Flight]:
        """The tickets of a new group, or of one that was deferred."""
        group = FlightGroup(group_id, members)
        self.groups[group_id] = group
        size = self._policy.group_size + self._policy.extra_members
        for member in range(members):
            ticket = Ticket(
                id=group_id * size + member,
                group=group_id,
                member=member,
                attempt=attempt,
                seed=ticket_seed(self._run_seed, group_id, member),
            )
            flight = Flight(ticket, group, now)
            group.flights.append(flight)
            self.flights[ticket.id] = flight
        return group.flights

    def awaited(self, ticket: Ticket, *states: TicketState) -> Flight | None:
        """The flight of an attempt, if it is still the one that is waited for, in one of these states."""
        flight = self.flights.get(ticket.id)
        if flight is None or flight.state not in states or flight.ticket.attempt != ticket.attempt:
            return None
        return flight

    def next_attempt(self, flight: Flight, state: TicketState, now: float) -> None:
        """A ticket is tried again."""
        flight.ticket = replace(flight.ticket, attempt=flight.ticket.attempt + 1)
        flight.state, flight.replica, flight.since = state, None, now
        self.ages.changed(flight.group)

    def leave_replica(self, flight: Flight) -> None:
        """A ticket gives its slot back."""
        if flight.replica is not None:
            self._replicas.release(flight.replica)
            flight.replica = None

    def settle(self, flight: Flight, now: float) -> list[Command]:
        """A member is READY: its group may be complete."""
        group = flight.group
        group.unsettled -= 1
        group.settled += 1
        return self._complete(group, now) if self._is_complete(group) else []

    def lose(self, flight: Flight, now: float) -> list[Command]:
        """A member is out of retries: its group goes on without it, or is dropped."""
        group = flight.group
        self._end(flight, TicketState.DROPPED, FAILED)
        group.unsettled -= 1
        group.lost += 1
        self.ages.changed(group)
        if len(group.flights) - group.lost < self._policy.min_members:
            return self.drop(group, FAILED, now)
        return self._complete(group, now) if self._is_complete(group) else []

    def drop(self, group: FlightGroup, reason: str, now: float) -> list[Command]:
        """A group ends without being delivered."""
        end = "group_failed" if reason == FAILED else reason
        commands = self._call_back(group, reason, now)
        for flight in group.flights:
            if flight.state is not TicketState.DROPPED:
                self._end(flight, TicketState.DROPPED, end)
        self._forget(group)
        self._ledger.drop(reason)
        return [*commands, Drop(group=group.id, reason=reason)]

    def cut(self, chosen: list[int], version: int, now: float, *, leave: bool) -> Cut:
        """Delivers the chosen groups; unless it is to `leave` them, ends or defers the others."""
        deliveries, ages = [], []
        for group_id in chosen:
            group = self.ready[group_id]
            self._forget(group)
            ages.append(staleness(version=version, oldest_version=group.oldest))
            members = [flight for flight in group.flights if flight.state is TicketState.READY]
            for flight in members:
                self._ledger.kept(flight.took)
                self._end(flight, TicketState.DELIVERED, "delivered")
            deliveries.append(Deliver(group=group_id, members=tuple(flight.ticket for flight in members)))
        self.mean_staleness = sum(ages) / len(ages) if ages else 0.0
        self._ledger.totals["delivered_groups"] += len(deliveries)
        commands = [] if leave else self._end_round(now)
        failures, dropped = self._ledger.clear_batch()
        return Cut(
            deliveries=tuple(deliveries),
            version=version,
            failures=failures,
            dropped=dropped,
            commands=tuple(commands),
        )

    def _end_round(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for group in list(self.groups.values()):
            commands += self._defer(group, now) if self._policy.defers else self.drop(group, SURPLUS, now)
        return commands

    def _defer(self, group: FlightGroup, now: float) -> list[Command]:
        """Its tickets end; in a long round new ones of the same ids and seeds begin with a later attempt."""
        commands = self._call_back(group, SURPLUS, now)
        for flight in group.flights:
            if flight.state is not TicketState.DROPPED:
                self._end(flight, TicketState.DROPPED, "deferred")
        self.deferred[group.id] = 1 + max(flight.ticket.attempt for flight in group.flights)
        self._forget(group)
        self._ledger.totals["deferred_groups"] += 1
        return [*commands, Defer(group=group.id)]

    def _is_complete(self, group: FlightGroup) -> bool:
        return group.unsettled == 0 or group.settled == self._policy.group_size

    def _complete(self, group: FlightGroup, now: float) -> list[Command]:
        commands: list[Command] = []
        for flight in group.flights:
            if flight.state in (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING):
                commands += self._abort(flight, SURPLUS, now)
                self._end(flight, TicketState.DROPPED, SURPLUS)
        members = [flight for flight in group.flights if flight.state is TicketState.READY]
        values = np.array([flight.value for flight in members], dtype=np.float64)
        truncated = np.array([flight.truncated for flight in members], dtype=np.bool_)
        for group_filter in self._policy.filters:
            if not group_filter.keep(values, truncated):
                return [*commands, *self.drop(group, f"filter:{group_filter.name}", now)]
        group.oldest = min(flight.oldest for flight in members)
        self.ready[group.id] = group
        self.ages.completed(group)
        return commands

    def _call_back(self, group: FlightGroup, reason: str, now: float) -> list[Command]:
        return [command for flight in group.flights for command in self._abort(flight, reason, now)]

    def _abort(self, flight: Flight, reason: str, now: float) -> list[Command]:
        running = flight.state in (TicketState.RUNNING, TicketState.GRADING)
        if flight.state is TicketState.RUNNING and math.isfinite(now):
            self._ledger.aborted(now - flight.since)
        self.leave_replica(flight)
        return [Abort(ticket=flight.ticket, reason=reason)] if running else []

    def _forget(self, group: FlightGroup) -> None:
        del self.groups[group.id]
        self.ages.ended(group, ready=self.ready.pop(group.id, None) is not None)

    def _end(self, flight: Flight, state: TicketState, how: str) -> None:
        flight.state = state
        self._ledger.ends[how] += 1
        del self.flights[flight.ticket.id]
