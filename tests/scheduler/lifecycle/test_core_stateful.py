"""Any order of arrivals, failures, deaths, stops, pauses and publications keeps the promises of the core."""

import math
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from roll_scheduler import (
    Abort,
    Defer,
    Drop,
    Generate,
    Grade,
    OverProvision,
    SchedulerCore,
    SchedulerError,
    SchedulerPolicy,
    StarvationError,
    Stragglers,
    Ticket,
    TicketState,
    TooManyFailures,
    ZeroSpread,
)
from roll_scheduler.health.straggler_watch import Straggler, _may_be_outrun
from roll_scheduler.lifecycle.command import Stop
from roll_scheduler.partial import PartialRollouts

GENERATE_DEADLINE_S, GRADE_DEADLINE_S, STOP_DEADLINE_S = 10.0, 3.0, 5.0

UNFINISHED = (TicketState.WAITING, TicketState.RUNNING, TicketState.GRADING)


@dataclass
class Generation:
    """A generation that runs.

    Attributes:
        leaving: Whether its replica has left as planned, so that it has no slot.
    """

    ticket: Ticket
    replica: str
    version: int
    stopping: bool = False
    leaving: bool = False


@dataclass
class Books:
    """What is known of a core from its commands alone."""

    core: SchedulerCore
    policy: SchedulerPolicy
    slots: dict[str, int]
    now: float = 0.0
    generating: dict[tuple[int, int], Generation] = field(default_factory=dict)
    grading: dict[int, Ticket] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=dict)
    past: list[Ticket] = field(default_factory=list)
    attempt: dict[int, int] = field(default_factory=dict)
    open_groups: set[int] = field(default_factory=set)
    deferred: set[int] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    delivered: list[int] = field(default_factory=list)
    begun: int = 0
    over: bool = False

    @property
    def running_ids(self) -> set[int]:
        return {ticket_id for ticket_id, _ in self.generating}

    @property
    def size(self) -> int:
        return self.policy.group_size + self.policy.extra_members

    def members(self, group: int) -> int:
        return len(self.core._book.groups[group].flights)

    def group_of(self, ticket_id: int) -> int:
        return ticket_id // self.size

    def carry_out(self, commands) -> None:
        """Checks each command against what runs, and notes it."""
        for command in commands:
            match command:
                case Generate(ticket=ticket, replica=replica):
                    self.begin(ticket, replica)
                case Grade(ticket=ticket):
                    assert ticket.id not in self.running_ids and ticket.id not in self.grading
                    self.grading[ticket.id] = ticket
                case Stop(ticket=ticket):
                    running = self.generating[key(ticket)]
                    assert running.ticket == ticket and not running.stopping
                    running.stopping = True
                case Abort(ticket=ticket):
                    running = self.generating.pop(key(ticket), None)
                    assert (running.ticket if running else self.grading.pop(ticket.id)) == ticket
                case Defer(group=group):
                    self.forget(group)
                    if group in self.core._book.deferred:
                        self.open_groups.remove(group)
                        self.deferred.add(group)
                    else:
                        self.begun += self.members(group)
                case Drop(group=group, reason=reason):
                    self.forget(group)
                    assert group in self.open_groups | self.deferred
                    self.open_groups.discard(group)
                    self.deferred.discard(group)
                    self.dropped[reason] += 1

    def begin(self, ticket: Ticket, replica: str) -> None:
        assert replica in self.slots
        assert ticket.id not in self.grading
        others = [running for running in self.generating.values() if running.ticket.id == ticket.id]
        assert len(others) <= (self.policy.stragglers is not None)
        assert all(other.replica != replica and not other.stopping for other in others)
        assert ticket.attempt > self.attempt.get(ticket.id, -1)
        self.attempt[ticket.id] = ticket.attempt
        self.deferred.discard(ticket.group)
        self.open_groups.add(ticket.group)
        kept = self.kept.get(ticket.id, [])
        if ticket.continues == 0:
            kept = self.kept[ticket.id] = []
        assert ticket.continues == len(kept)
        if kept:
            assert len({*kept, self.core.version}) <= self.policy.partial.max_versions
        self.generating[key(ticket)] = Generation(ticket, replica, self.core.version)
        self.past.append(ticket)

    def forget(self, group: int) -> None:
        """A group ended or begins anew: nothing of it runs, nothing of it is needed."""
        members = range(group * self.size, (group + 1) * self.size)
        for ticket_id in members:
            assert ticket_id not in self.running_ids and ticket_id not in self.grading
            self.values.pop(ticket_id, None)
            self.oldest.pop(ticket_id, None)
            self.kept.pop(ticket_id, None)

    def tokens_of(self, which: tuple[int, int], new: int, lag: int) -> tuple[int, int]:
        """Tokens so far with some new ones, sampled at the version of the sending less `lag`; and that."""
        version = max(0, self.generating[which].version - lag)
        tokens = self.kept.setdefault(which[0], [])
        tokens.extend([version] * new)
        return len(tokens), version

    def generate(self, which: tuple[int, int], *, new: int = 1, lag: int = 0) -> None:
        """A generation finishes."""
        count, version = self.tokens_of(which, new, lag)
        ticket = self.generating.pop(which).ticket
        self.oldest[ticket.id] = min(self.kept[ticket.id])
        self.carry_out(
            self.core.generated(ticket, tokens=count, oldest_version=version, truncated=False, now=self.now)
        )

    def stop(self, which: tuple[int, int], *, new: int) -> None:
        """A generation ends unfinished."""
        count, version = self.tokens_of(which, new, 0)
        ticket = self.generating.pop(which).ticket
        self.carry_out(self.core.stopped(ticket, tokens=count, oldest_version=version, now=self.now))

    def grade(self, ticket_id: int, value: float) -> None:
        """A grading finishes."""
        ticket = self.grading.pop(ticket_id)
        if math.isfinite(value):
            self.values[ticket_id] = value
        self.carry_out(self.core.graded(ticket, value=value, now=self.now))

    def fail(self, which: tuple[int, int] | int) -> None:
        """A generation or grading fails."""
        ticket = self.grading.pop(which) if isinstance(which, int) else self.generating.pop(which).ticket
        self.carry_out(self.core.failed(ticket, "engine", "broken", self.now))

    def lose(self, name: str, *, planned: bool) -> None:
        """A replica leaves."""
        del self.slots[name]
        for running in self.generating.values():
            running.leaving |= running.replica == name
        self.carry_out(self.core.replica_down(name, "died", self.now, planned=planned))
        stays = [running for running in self.generating.values() if running.replica == name]
        assert all(planned and running.stopping for running in stays)

    def take(self):
        """Asks for a batch, checks what it is, and asks for the next."""
        try:
            cut = self.core.take_batch(self.now)
        except SchedulerError as error:
            self.over = isinstance(error, TooManyFailures | StarvationError)
            assert self.over or not self.slots
            return None
        if cut is not None:
            self.check(cut)
            self.carry_out(cut.commands)
            if self.policy.max_staleness == 0:
                assert not self.open_groups
        return cut

    def check(self, cut) -> None:
        """The batch keeps every bound."""
        ages = []
        for delivery in cut.deliveries:
            members = [ticket.id for ticket in delivery.members]
            assert self.policy.min_members <= len(members) <= self.policy.group_size
            assert all(id in self.values and id not in self.grading for id in members)
            ages.append(max(self.core.version - self.oldest[id] for id in members))
            if self.policy.filters:
                assert len({self.values[id] for id in members}) > 1
            if self.policy.partial is not None:
                versions = [[s.version for s in spans for _ in range(s.tokens)] for spans in delivery.spans]
                assert versions == [self.kept[id] for id in members]
            self.forget(delivery.group)
            self.open_groups.remove(delivery.group)
            self.delivered.append(delivery.group)
        bound = self.policy.max_staleness
        assert max(ages, default=0) <= math.ceil(bound)
        if bound % 1:
            share = math.ceil((bound - math.floor(bound)) * self.policy.groups_per_batch)
            assert sum(age == math.ceil(bound) for age in ages) <= share
        assert len(set(self.delivered)) == len(self.delivered)

    def pending(self) -> dict[int, TicketState]:
        return {item.ticket.id: item.state for item in self.core.pending(self.now)}

    def check_places(self) -> None:
        """Every ticket that has not ended is in the one place where the commands have put it."""
        pending = self.pending()
        assert {id for id, state in pending.items() if state is TicketState.RUNNING} == self.running_ids
        assert {id for id, state in pending.items() if state is TicketState.GRADING} == self.grading.keys()
        ready = {id for id in self.values if id not in self.grading}
        assert {self.group_of(id) for id in [*pending, *ready]} == self.open_groups
        assert not pending.keys() & ready
        metrics = self.core.metrics(self.now)
        counts = Counter(pending.values())
        assert all(metrics[f"scheduler/{state}"] == counts[state] for state in UNFINISHED)
        assert metrics["scheduler/ready"] == len(ready)

    def check_bounds(self) -> None:
        """Admission, slots and environments keep within their limits."""
        policy = self.policy
        most = policy.pool + math.ceil(policy.max_staleness * policy.groups_per_batch) + policy.extra_groups
        assert len(self.open_groups) <= most
        here = [running for running in self.generating.values() if not running.leaving]
        load = Counter(running.replica for running in here)
        assert all(count <= self.slots[replica] for replica, count in load.items())
        tags = Counter(self.group_of(id) % 2 for id, _ in self.generating)
        for tag, limit in policy.concurrency.items():
            assert tags[int(tag)] <= limit
        snapshot = self.core.snapshot()
        ahead = set(range(snapshot.first_group, self.core.next_group)) - set(snapshot.resolved)
        assert ahead == self.open_groups | self.deferred
        assert set(snapshot.deferred) == self.deferred


def key(ticket: Ticket) -> tuple[int, int]:
    return ticket.id, ticket.attempt


class CoreMachine(RuleBasedStateMachine):
    """Runs a core as a driver would."""

    def __init__(self):
        super().__init__()
        self.paused = False

    @initialize(
        groups_per_batch=st.integers(1, 3),
        group_size=st.integers(1, 4),
        max_staleness=st.sampled_from([0, 0, 0.5, 1, 1.4, 2]),
        retries=st.integers(0, 2),
        max_failures=st.sampled_from([3, 1000]),
        max_refills=st.sampled_from([2, 1000]),
        stale=st.sampled_from(["drop", "requeue"]),
        quarantine_after=st.sampled_from([0, 2, 3]),
        filtered=st.booleans(),
        slots=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        extra=st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()),
        partial=st.tuples(st.booleans(), st.integers(1, 3), st.booleans()),
        limit=st.sampled_from([None, 1, 2]),
        action=st.sampled_from([None, "duplicate", "duplicate", "move"]),
    )
    def start(self, slots, filtered, extra, partial, limit, action, **sizes):
        groups, members, defer = extra
        over_provision = None
        if groups + members:
            over_provision = OverProvision(
                groups=min(groups, sizes["groups_per_batch"]),
                members=members,
                defer=defer and sizes["max_staleness"] == 0,
            )
        in_parts, max_versions, at_cut = partial
        policy = SchedulerPolicy(
            **sizes,
            over_provision=over_provision,
            filters=(ZeroSpread(),) if filtered else (),
            partial=PartialRollouts(
                max_versions=max_versions,
                stop_at_cut=at_cut and sizes["max_staleness"] > 0,
                stop_deadline_s=STOP_DEADLINE_S,
            )
            if in_parts
            else None,
            stragglers=straggler_rule(action, in_parts),
            concurrency={} if limit is None else {"1": limit},
            generate_deadline_s=GENERATE_DEADLINE_S,
            grade_deadline_s=GRADE_DEADLINE_S,
        )
        slots = {f"r{number}": count for number, count in enumerate(slots)}
        core = SchedulerCore(policy, replicas=slots, tag=lambda group: str(group % 2))
        self.books = Books(core, policy, slots)
        self.core, self.policy = core, policy
        self.chosen = []
        if policy.stragglers is not None:
            # Speeds that differ are rare in a random schedule: the machine says who is late.
            core._overtaking._watch.look = self.look
        core.open_batch()

    def look(self, now):
        self.core._overtaking._watch.next_at = now + self.policy.stragglers.every_s
        chosen, self.chosen = self.chosen, []
        return chosen

    def one_of(self, data, tickets):
        return data.draw(st.sampled_from(sorted(tickets, key=str)))

    @precondition(lambda self: self.core.room > 0)
    @rule(most=st.integers(1, 9))
    def admit(self, most):
        for _ in range(min(most, self.core.room)):
            group = self.core.next_group
            commands = self.core.admit(self.books.now)
            self.books.open_groups.add(group)
            self.books.begun += self.books.members(group)
            self.books.carry_out(commands)

    @rule()
    def refill(self):
        commands = self.core.refill(self.books.now)
        reopened = self.books.deferred - self.core._book.deferred.keys()
        self.books.deferred -= reopened
        self.books.open_groups |= reopened
        self.books.begun += sum(map(self.books.members, reopened))
        self.books.carry_out(commands)

    @precondition(lambda self: self.books.generating)
    @rule(data=st.data(), lag=st.sampled_from([0, 0, 0, 1]), new=st.integers(1, 3))
    def generate_one(self, data, lag, new):
        self.books.generate(self.one_of(data, self.books.generating), new=new, lag=lag)

    @precondition(lambda self: self.policy.partial and self.books.generating)
    @rule(data=st.data(), new=st.integers(0, 3))
    def stop_one(self, data, new):
        """Asked or not: an engine may stop a request by itself."""
        self.books.stop(self.one_of(data, self.books.generating), new=new)

    @precondition(lambda self: any(running.stopping for running in self.books.generating.values()))
    @rule(new=st.integers(0, 2))
    def stop_all_that_are_to(self, new):
        for which, running in list(self.books.generating.items()):
            if running.stopping and which in self.books.generating:
                self.books.stop(which, new=new)

    @precondition(lambda self: self.books.grading)
    @rule(data=st.data(), value=st.sampled_from([0.0, 1.0, float("nan")]))
    def grade_one(self, data, value):
        self.books.grade(self.one_of(data, self.books.grading), value)

    @precondition(lambda self: self.books.generating or self.books.grading)
    @rule(data=st.data())
    def fail_one(self, data):
        self.books.fail(self.one_of(data, [*self.books.generating, *self.books.grading]))

    @precondition(lambda self: self.books.past)
    @rule(data=st.data())
    def report_something_late(self, data):
        ticket, now = data.draw(st.sampled_from(self.books.past)), self.books.now
        running = self.books.generating.get(key(ticket))
        if running is None:
            assert self.core.generated(ticket, tokens=9, oldest_version=0, truncated=False, now=now) == []
            assert self.core.stopped(ticket, tokens=9, oldest_version=0, now=now) == []
        if self.books.grading.get(ticket.id) != ticket:
            assert self.core.graded(ticket, value=0.5, now=now) == []

    @rule(seconds=st.floats(0.0, 6.0))
    def let_time_pass(self, seconds):
        self.books.now += seconds
        self.books.carry_out(self.core.tick(self.books.now))
        assert self.core.next_deadline is None or self.core.next_deadline > self.books.now

    @precondition(lambda self: self.policy.stragglers is not None and self.books.generating)
    @rule(data=st.data())
    def find_a_straggler(self, data):
        flights = [
            flight
            for name in self.books.slots
            for flight in self.core._departures.on(name)
            if _may_be_outrun(flight)
        ]
        if flights:
            flight = flights[data.draw(st.integers(0, len(flights) - 1))]
            self.chosen = [Straggler(flight, frozenset({flight.replica, *flight.avoid}))]
            self.core._overtaking._watch.next_at = -math.inf
            self.books.carry_out(self.core.tick(self.books.now))
            self.chosen = []  # where something waits, nobody is outrun

    @precondition(lambda self: self.books.generating)
    @rule(data=st.data(), tokens=st.integers(0, 9))
    def report_tokens(self, data, tokens):
        running = self.books.generating[self.one_of(data, self.books.generating)]
        self.core.reported(running.ticket, tokens, self.books.now)

    @rule(most=st.sampled_from([None, 2]))
    def ask_why(self, most):
        why = self.core.why(self.books.now, most=most)
        assert sum(why.counts.values()) - why.counts["ready"] == self.core.pending_count()
        assert all(late.why for late in why.late)
        assert (why.blocked == "") or self.paused or not self.books.slots or self.core._departures.held
        assert len(why.text().splitlines()) == 1 + (len(why.late) + 1 if why.late else 0)

    @precondition(lambda self: self.books.slots)
    @rule(data=st.data(), planned=st.booleans())
    def lose_a_replica(self, data, planned):
        self.books.lose(self.one_of(data, self.books.slots), planned=planned)

    @rule(slots=st.integers(1, 3))
    def gain_a_replica(self, slots):
        name = f"n{len(self.books.past)}-{self.books.now}"
        if name not in self.books.slots:
            self.books.slots[name] = slots
            self.books.carry_out(self.core.replica_up(name, slots, self.books.now))

    @rule(mode=st.sampled_from(["keep", "abort", "stop"]))
    def pause(self, mode):
        if mode == "stop" and self.policy.partial is None:
            mode = "keep"
        self.paused = True
        commands = self.core.pause(mode, self.books.now)
        self.books.carry_out(commands)
        if mode == "abort":
            assert not self.books.generating
        assert mode != "stop" or all(each.stopping for each in self.books.generating.values())

    @rule()
    def resume(self):
        self.paused = False
        self.books.carry_out(self.core.resume(self.books.now))

    @rule()
    def publish(self):
        self.books.carry_out(self.core.publish(self.core.version + 1, self.books.now))

    @rule(train=st.booleans())
    def ask_for_a_batch(self, train):
        self.take(train=train)

    def take(self, *, train):
        cut = self.books.take()
        if cut is None:
            return None
        if self.policy.partial is not None and self.policy.partial.stop_at_cut:
            assert self.core.room == 0
            assert all(running.stopping for running in self.books.generating.values())
        if train:
            self.publish()
        self.core.open_batch()
        return cut

    @invariant()
    def every_ticket_is_in_one_place(self):
        self.books.check_places()

    @invariant()
    def bounds_are_respected(self):
        self.books.check_bounds()

    @invariant()
    def nothing_starts_in_a_pause(self):
        if self.paused:
            assert self.core.room == 0

    @invariant()
    def no_slot_is_left_idle_while_a_ticket_could_take_it(self):
        held = self.paused or (self.policy.partial is not None and self.policy.partial.stop_at_cut)
        if held or self.policy.concurrency:
            return
        here = [running for running in self.books.generating.values() if not running.leaving]
        load = Counter(running.replica for running in here)
        if any(load[replica] < slots for replica, slots in self.books.slots.items()):
            waiting = [i for i in self.core.pending(self.books.now) if i.state is TicketState.WAITING]
            # Retries may wait for another replica, suspects for a place.
            assert all(item.ticket.attempt > 0 or self.core.snapshot().suspects for item in waiting)
            if len(self.books.slots) == 1 and not self.core.snapshot().suspects:
                assert not waiting

    def teardown(self):
        if not hasattr(self, "core"):
            return
        if not self.books.slots:
            self.gain_a_replica(slots=2)
        self.resume()
        self.core.exhaust()
        for _ in range(300):
            self.refill()
            for which in list(self.books.generating):
                if which in self.books.generating:
                    self.books.generate(which)
            for ticket_id in list(self.books.grading):
                if ticket_id in self.books.grading:
                    self.books.grade(ticket_id, float(ticket_id % 2))
            cut = self.take(train=False)
            if self.books.over or (cut is not None and not cut.deliveries):
                break
        else:
            raise AssertionError("deadlock: the last batch never came")
        assert self.books.over or not self.books.open_groups
        self.books.carry_out(self.core.close())
        assert not self.books.generating and not self.books.grading and not self.books.open_groups
        ends = self.core.ledger.ends
        assert sum(ends.values()) == self.books.begun
        assert ends["delivered"] == self.core.ledger.totals["kept"]


def straggler_rule(action, in_parts):
    if action is None or (action == "move" and not in_parts):
        return None
    return Stragglers(action=action, every_s=0.5)


CoreMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestCoreKeepsItsPromises = CoreMachine.TestCase
