"""Any order of arrivals, failures, deaths, filters and publications keeps the promises of the core."""

from collections import Counter

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
    TicketState,
    TooManyFailures,
    ZeroSpread,
)

GENERATE_DEADLINE_S, GRADE_DEADLINE_S = 10.0, 3.0


class CoreMachine(RuleBasedStateMachine):
    """Runs a core as a driver would and keeps its own books."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.admitted = set()
        self.ready = {}
        self.ended = set()
        self.generating = {}
        self.grading = {}
        self.sampled_at = {}
        self.past = []
        self.sent_at = {}
        self.open_groups = set()
        self.deferred = set()
        self.relaunched = 0
        self.delivered = 0
        self.failed_for_good = False

    @initialize(
        groups_per_batch=st.integers(1, 3),
        group_size=st.integers(1, 4),
        max_staleness=st.integers(0, 2),
        retries=st.integers(0, 2),
        max_failures=st.sampled_from([3, 1000]),
        max_refills=st.sampled_from([2, 1000]),
        filtered=st.booleans(),
        slots=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        extra=st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()),
    )
    def start(self, slots, filtered, extra, **sizes):
        groups, members, defer = extra
        over_provision = None
        if groups + members:
            over_provision = OverProvision(
                groups=min(groups, sizes["groups_per_batch"]),
                members=members,
                defer=defer and sizes["max_staleness"] == 0,
            )
        self.policy = SchedulerPolicy(
            **sizes,
            over_provision=over_provision,
            filters=(ZeroSpread(),) if filtered else (),
            generate_deadline_s=GENERATE_DEADLINE_S,
            grade_deadline_s=GRADE_DEADLINE_S,
        )
        self.slots = {f"r{number}": count for number, count in enumerate(slots)}
        self.core = SchedulerCore(self.policy, replicas=self.slots)

    def carry_out(self, commands):
        for command in commands:
            match command:
                case Generate(ticket=ticket, replica=replica):
                    assert ticket.id not in self.generating | self.grading
                    assert ticket.id in self.admitted - self.ended
                    self.generating[ticket.id] = (ticket, replica, self.core.version)
                    self.sent_at[ticket] = self.now + GENERATE_DEADLINE_S - GRADE_DEADLINE_S
                    self.past.append(ticket)
                case Grade(ticket=ticket):
                    assert ticket.id not in self.generating | self.grading
                    self.grading[ticket.id] = ticket
                    self.sent_at[ticket] = self.now
                case Abort(ticket=ticket, reason=reason):
                    running = self.generating.pop(ticket.id, (None,))[0] or self.grading.pop(ticket.id)
                    assert running == ticket
                    if reason == "deadline":
                        assert self.now - self.sent_at[ticket] >= GRADE_DEADLINE_S
                case Drop(group=group) if group in self.deferred:
                    self.deferred.remove(group)
                case Drop(group=group):
                    self.end_group(group)
                case Defer(group=group):
                    self.end_group(group)
                    self.deferred.add(group)

    def members(self, group):
        size = self.policy.group_size + self.policy.extra_members
        return self.admitted & set(range(group * size, group * size + size))

    def note_launched(self):
        """Tickets that the core has launched by itself or for a new prompt."""
        pending = {item.ticket.id: item.ticket.group for item in self.core.pending(self.now)}
        again = pending.keys() & self.ended
        self.relaunched += len(again)
        self.ended -= again
        self.admitted |= pending.keys()
        for group in self.deferred & {pending[id] for id in again}:
            self.deferred.remove(group)
            self.open_groups.add(group)

    def end_group(self, group):
        self.open_groups.remove(group)
        members = self.members(group)
        assert not members & (self.generating.keys() | self.grading.keys())
        self.ended |= members
        for member in members:
            self.ready.pop(member, None)

    def note_lost_members(self):
        pending = {item.ticket.id for item in self.core.pending(self.now)}
        self.ended |= self.admitted - pending - self.ready.keys() - self.ended

    @rule()
    def check_the_snapshot(self):
        """It names exactly the groups that have not ended, whatever has happened."""
        snapshot = self.core.snapshot()
        ahead = set(range(snapshot.first_group, self.core.next_group)) - set(snapshot.resolved)
        assert ahead == self.open_groups | self.deferred
        assert set(snapshot.deferred) == self.deferred
        assert snapshot.version == self.core.version

    @precondition(lambda self: self.core.room > 0)
    @rule()
    def admit(self):
        self.open_groups.add(self.core.next_group)
        commands = self.core.admit(self.now)
        self.note_launched()
        self.carry_out(commands)

    @rule()
    def refill(self):
        commands = self.core.refill(self.now)
        self.note_launched()
        self.carry_out(commands)

    @precondition(lambda self: self.generating)
    @rule(data=st.data(), lag=st.integers(0, 1))
    def generate_one(self, data, lag):
        self.generate(data.draw(st.sampled_from(sorted(self.generating))), lag)

    def generate(self, ticket_id, lag=0):
        ticket, _, version = self.generating.pop(ticket_id)
        oldest = max(0, version - lag)
        self.sampled_at[ticket_id] = oldest
        self.carry_out(
            self.core.generated(ticket, tokens=1, oldest_version=oldest, truncated=False, now=self.now)
        )

    @precondition(lambda self: self.grading)
    @rule(data=st.data(), value=st.sampled_from([0.0, 1.0, float("nan")]))
    def grade_one(self, data, value):
        self.grade(data.draw(st.sampled_from(sorted(self.grading))), value)

    def grade(self, ticket_id, value):
        ticket = self.grading.pop(ticket_id)
        if value == value:
            self.ready[ticket_id] = value
        self.carry_out(self.core.graded(ticket, value=value, now=self.now))
        self.note_lost_members()

    @precondition(lambda self: self.generating or self.grading)
    @rule(data=st.data())
    def fail_one(self, data):
        ticket_id = data.draw(st.sampled_from(sorted(self.generating | self.grading)))
        ticket = self.generating.pop(ticket_id, (None,))[0] or self.grading.pop(ticket_id)
        self.carry_out(self.core.failed(ticket, "engine", "broken", self.now))
        self.note_lost_members()

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def report_something_late(self, data):
        ticket = data.draw(st.sampled_from(self.past))
        if self.generating.get(ticket.id, (None,))[0] != ticket:
            assert (
                self.core.generated(ticket, tokens=1, oldest_version=0, truncated=False, now=self.now) == []
            )
        if self.grading.get(ticket.id) != ticket:
            assert self.core.graded(ticket, value=0.5, now=self.now) == []

    @rule(seconds=st.floats(0.0, 6.0))
    def let_time_pass(self, seconds):
        self.now += seconds
        self.carry_out(self.core.tick(self.now))
        self.note_lost_members()
        assert self.core.next_deadline is None or self.core.next_deadline > self.now

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def lose_a_replica(self, data):
        name = data.draw(st.sampled_from(sorted(self.slots)))
        del self.slots[name]
        self.carry_out(self.core.replica_down(name, "died", self.now))

    @rule(slots=st.integers(1, 3))
    def gain_a_replica(self, slots):
        name = f"n{len(self.past)}-{self.now}"
        if name not in self.slots:
            self.slots[name] = slots
            self.carry_out(self.core.replica_up(name, slots, self.now))

    @rule()
    def publish(self):
        self.carry_out(self.core.publish(self.core.version + 1, self.now))

    @rule()
    def ask_for_a_batch(self):
        self.take()

    def take(self):
        try:
            cut = self.core.take_batch()
        except SchedulerError as error:
            self.failed_for_good = isinstance(error, TooManyFailures | StarvationError)
            assert self.failed_for_good or not self.slots
            return None
        if cut is None:
            return None
        for delivery in cut.deliveries:
            members = {ticket.id for ticket in delivery.members}
            assert len(members) >= self.policy.min_members
            assert members <= self.ready.keys()
            assert all(self.core.version - self.sampled_at[id] <= self.policy.max_staleness for id in members)
            if self.policy.filters:
                assert len({self.ready[id] for id in members}) > 1
            self.end_group(delivery.group)
            self.delivered += len(members)
        self.carry_out(cut.commands)
        if self.policy.max_staleness == 0:
            assert not self.open_groups
        self.core.open_batch()
        return cut

    @invariant()
    def every_ticket_is_in_one_place(self):
        pending = {item.ticket.id: item for item in self.core.pending(self.now)}
        assert pending.keys() | self.ready.keys() | self.ended == self.admitted
        assert not pending.keys() & (self.ready.keys() | self.ended) and not self.ready.keys() & self.ended
        assert sum(self.core.ledger.ends.values()) == len(self.ended) + self.relaunched
        assert self.core.ledger.ends["delivered"] == self.delivered
        running = {id for id, item in pending.items() if item.state is TicketState.RUNNING}
        assert running == self.generating.keys()
        assert {
            id for id, item in pending.items() if item.state is TicketState.GRADING
        } == self.grading.keys()

    @invariant()
    def bounds_are_respected(self):
        most = (self.policy.max_staleness + 1) * self.policy.groups_per_batch + self.policy.extra_groups
        assert len(self.open_groups) <= most
        load = Counter(replica for _, replica, _ in self.generating.values())
        assert all(count <= self.slots[replica] for replica, count in load.items())

    @invariant()
    def no_slot_is_left_idle_while_a_ticket_could_take_it(self):
        load = Counter(replica for _, replica, _ in self.generating.values())
        if any(load[replica] < slots for replica, slots in self.slots.items()):
            waiting = [i.ticket for i in self.core.pending(self.now) if i.state is TicketState.WAITING]
            assert all(ticket.attempt > 0 for ticket in waiting)
            assert len(self.slots) > 1 or not waiting

    def teardown(self):
        if not hasattr(self, "core"):
            return
        if not self.slots:
            self.gain_a_replica(slots=2)
        self.core.exhaust()
        for _ in range(200):
            self.refill()
            for ticket_id in list(self.generating):
                self.generate(ticket_id) if ticket_id in self.generating else None
            for ticket_id in list(self.grading):
                self.grade(ticket_id, float(ticket_id % 2)) if ticket_id in self.grading else None
            cut = self.take()
            if self.failed_for_good or (cut is not None and not cut.deliveries):
                break
        else:
            raise AssertionError("deadlock: the last batch never came")
        assert self.failed_for_good or not self.open_groups
        self.carry_out(self.core.close())
        self.every_ticket_is_in_one_place()
        assert self.ended == self.admitted


CoreMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestCoreKeepsItsPromises = CoreMachine.TestCase
