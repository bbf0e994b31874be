"""Groups on their way: opened, completed, dropped, begun anew, cut into batches. Used by the core."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from roll_scheduler.lifecycle.command import Abort, Command, Cut, Defer, Deliver, Drop
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.lifecycle.ledger import FAILED, Ledger
from roll_scheduler.lifecycle.twins import Twins
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.rounds.ages import GroupAges
from roll_scheduler.rounds.group_filter import BatchFilter, GroupFilter
from roll_scheduler.rounds.provision import Provision
from roll_scheduler.rounds.selection import first_refusal
from roll_scheduler.rounds.staleness import staleness
from roll_scheduler.ticket import Ticket, TicketState, ticket_seed

__all__ = ["GroupBook"]

SURPLUS = "surplus"


class GroupBook:
    """Every group that was admitted and has not ended, and the tickets of them.

    Args:
        policy: Sizes and filters.
        departures: Where tickets wait, and where those that end give their slot back.
        ledger: Where ends are counted.
        run_seed: Seed that ticket seeds derive from.
        version: Policy version.
        opened: Called with each group that begins, before its tickets wait.

    Attributes:
        version: Policy version.
        groups: By id.
        ready: Those of them that are complete.
        flights: Tickets that have not ended, by id.
        deferred: Groups that wait for a long round: the attempt that their tickets begin with, by id.
        ages: Their versions.
        twins: Tickets of which two attempts run.
        mean_staleness: Of the batch that was cut last.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        departures: Departures,
        ledger: Ledger,
        run_seed: int,
        version: int,
        opened: Callable[[FlightGroup], None],
    ) -> None:
        self._policy = policy
        self._departures = departures
        self._ledger = ledger
        self._run_seed = run_seed
        self._opened = opened
        self._oldest_age = math.ceil(policy.max_staleness)
        self.version = version
        self.groups: dict[int, FlightGroup] = {}
        self.ready: dict[int, FlightGroup] = {}
        self.flights: dict[int, Flight] = {}
        self.deferred: dict[int, int] = {}
        self.ages = GroupAges()
        self.mean_staleness = 0.0
        self.provision = Provision(policy)
        self.twins = Twins(self.flights, departures=departures, ledger=ledger, ages=self.ages)

    def open(self, group_id: int, now: float, *, members: int, attempt: int = 0) -> list[Flight]:
        """The tickets of a new group, or of one that was deferred."""
        group = FlightGroup(group_id, members)
        self._opened(group)
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
        if flight is not None and flight.ticket.attempt != ticket.attempt:
            flight = flight.twin
        if flight is None or flight.state not in states or flight.ticket.attempt != ticket.attempt:
            return None
        return flight

    def running(self) -> list[Flight]:
        """Tickets that are being generated."""
        return [flight for flight in self.flights.values() if flight.state is TicketState.RUNNING]

    def next_attempt(self, flight: Flight, state: TicketState, now: float) -> None:
        """A ticket is tried again, or goes on with what it kept."""
        flight.ticket = replace(flight.ticket, attempt=flight.attempts, continues=flight.kept)
        flight.attempts += 1
        flight.reported = 0
        flight.state, flight.replica, flight.since, flight.stopping = state, None, now, False
        self.ages.changed(flight.group)

    def begin_anew(self, flight: Flight) -> None:
        """A ticket that waits gives up what it has of earlier attempts."""
        if flight.kept:
            self._ledger.begun_anew(flight.kept)
            flight.kept, flight.spans, flight.took = 0, (), 0.0
            flight.ticket = replace(flight.ticket, continues=0)
            self.ages.changed(flight.group)

    def leave_replica(self, flight: Flight) -> None:
        """A ticket gives its slot back."""
        self._departures.left(flight)

    def fresh(self, oldest_version: int) -> bool:
        """Whether what was sampled at a version may still be trained on; see `may_train`."""
        return self.version - oldest_version <= self._oldest_age

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

    def stale(self, group: FlightGroup, now: float) -> list[Command]:
        """A group is too old for training: it ends, or begins anew with the current version."""
        if self._policy.stale == "drop":
            return self.drop(group, "stale", now)
        commands, attempt = self._end_all(group, "requeued", now)
        self._ledger.requeue()
        flights = self.open(group.id, now, members=len(group.flights), attempt=attempt)
        self._departures.add_first(flights)
        return [*commands, Defer(group=group.id)]

    def expire(self, now: float) -> list[Command]:
        """A new version was published: ends what is too old; what waits in part begins anew instead."""
        commands: list[Command] = []
        for group in list(self.groups.values()):
            sampled_at = group.sampled_at()
            if sampled_at is not None and not self.fresh(sampled_at):
                commands += self.stale(group, now)
            elif group.sent is not None and not self.fresh(group.sent):
                for flight in group.flights:
                    if flight.state is TicketState.WAITING and not self.fresh(flight.oldest):
                        self.begin_anew(flight)
        return commands

    def cut(self, chosen: Sequence[int], now: float, *, leave: bool, refused: Sequence[int] = ()) -> Cut:
        """Delivers the chosen groups; unless it is to `leave` them, ends or defers the others.

        Args:
            chosen: Groups of the batch.
            now: For the ages of what is aborted.
            leave: Whether the others go on.
            refused: Complete groups that the batch filter did not choose.
        """
        deliveries, ages = [], []
        for group_id in chosen:
            group = self.ready[group_id]
            self._forget(group)
            ages.append(staleness(version=self.version, oldest_version=group.oldest))
            members = [flight for flight in group.flights if flight.state is TicketState.READY]
            self._ledger.kept(len(members), sum(flight.took for flight in members))
            for flight in members:
                self._end(flight, TicketState.DELIVERED, "delivered")
            deliveries.append(self._delivery(group_id, members))
        self.mean_staleness = sum(ages) / len(ages) if ages else 0.0
        self._ledger.totals["delivered_groups"] += len(deliveries)
        commands: list[Command] = []
        for group_id in refused:
            commands += self._refuse(self.ready[group_id], self._policy.batch_filter, now)
        commands += [] if leave else self._end_round(now)
        failures, dropped = self._ledger.clear_batch()
        return Cut(
            deliveries=tuple(deliveries),
            version=self.version,
            failures=failures,
            dropped=dropped,
            commands=tuple(commands),
        )

    def _delivery(self, group_id: int, members: Sequence[Flight]) -> Deliver:
        tickets = tuple(flight.ticket for flight in members)
        if self._policy.partial is None:
            return Deliver(group=group_id, members=tickets)
        return Deliver(group=group_id, members=tickets, spans=tuple(flight.spans for flight in members))

    def _refuse(self, group: FlightGroup, by: GroupFilter | BatchFilter | None, now: float) -> list[Command]:
        name = "" if by is None else by.name
        values = [flight.value for flight in group.flights if flight.state is TicketState.READY]
        self._ledger.refused(f"filter:{name}", values)
        return self.drop(group, f"filter:{name}", now)

    def _end_round(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for group in list(self.groups.values()):
            commands += self._defer(group, now) if self._policy.defers else self.drop(group, SURPLUS, now)
        return commands

    def _defer(self, group: FlightGroup, now: float) -> list[Command]:
        """Its tickets end; in a long round new ones of the same ids and seeds begin with a later attempt."""
        commands, self.deferred[group.id] = self._end_all(group, "deferred", now)
        self._ledger.totals["deferred_groups"] += 1
        return [*commands, Defer(group=group.id)]

    def _end_all(self, group: FlightGroup, how: str, now: float) -> tuple[list[Command], int]:
        """Ends the tickets of a group that will begin anew, and says with which attempt."""
        self._departures.remember(group)
        commands = self._call_back(group, SURPLUS if how == "deferred" else how, now)
        for flight in group.flights:
            if flight.state is not TicketState.DROPPED:
                self._end(flight, TicketState.DROPPED, how)
        self._forget(group)
        return commands, max(flight.attempts for flight in group.flights)

    def _is_complete(self, group: FlightGroup) -> bool:
        return group.unsettled == 0 or group.settled == self._policy.group_size

    def _complete(self, group: FlightGroup, now: float) -> list[Command]:
        commands: list[Command] = []
        for flight in group.flights:
            if flight.state in (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING):
                commands += self._abort(flight, SURPLUS, now)
                self._end(flight, TicketState.DROPPED, SURPLUS)
        members = [flight for flight in group.flights if flight.state is TicketState.READY]
        refusing = first_refusal(members, self._policy.filters)
        if refusing is not None:
            return [*commands, *self._refuse(group, refusing, now)]
        group.oldest = min(flight.oldest for flight in members)
        self.ready[group.id] = group
        self.ages.completed(group)
        return commands

    def _call_back(self, group: FlightGroup, reason: str, now: float) -> list[Command]:
        return [command for flight in group.flights for command in self._abort(flight, reason, now)]

    def _abort(self, flight: Flight, reason: str, now: float) -> list[Command]:
        commands = self.twins.alone(flight)
        running = flight.state in (TicketState.RUNNING, TicketState.GRADING)
        if flight.state is TicketState.RUNNING and math.isfinite(now):
            self._ledger.aborted(now - flight.since)
            flight.aborted_s = flight.took + now - flight.since
        self.leave_replica(flight)
        return [*commands, Abort(ticket=flight.ticket, reason=reason)] if running else commands

    def _forget(self, group: FlightGroup) -> None:
        del self.groups[group.id]
        self.ages.ended(group, ready=self.ready.pop(group.id, None) is not None)
        self.provision.observe(group)

    def _end(self, flight: Flight, state: TicketState, how: str) -> None:
        flight.state = state
        self._ledger.ends[how] += 1
        del self.flights[flight.ticket.id]
        if flight.admitted:
            self._departures.ended(flight)
