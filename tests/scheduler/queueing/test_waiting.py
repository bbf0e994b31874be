"""Orders of waiting tickets: nobody is lost, doubled or starved; free slots find their prompts."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import LengthPredictor, PrefixAffinity, Ticket, TicketState
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.queueing.longest_first import LongestFirst
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.queueing.prompt_homes import PromptHomes
from roll_scheduler.queueing.waiting import AffineOrder, FifoOrder
from roll_scheduler.routers.router import Request


class Told:
    """An estimator that says what it was told of each group."""

    def __init__(self, lengths=()):
        self.lengths = dict(lengths)
        self.running = []

    def observe(self, key, domain, tokens, truncated=False):
        self.lengths[key] = tokens

    def expected(self, key, domain="", *, so_far=0.0, running=()):
        self.running = list(running)
        return self.lengths.get(key, 100.0) + sum(running)


def group_of(number, size=3):
    group = FlightGroup(number, size)
    for member in range(size):
        ticket = Ticket(id=number * size + member, group=number, member=member, attempt=0, seed=0)
        group.flights.append(Flight(ticket, group, 0.0))
    return group


def start(order, flight, replica="a", now=0.0):
    flight.state, flight.replica, flight.since = TicketState.RUNNING, replica, now
    order.taken(flight, replica)


def drain(order, now=0.0):
    """(group, member) in the order in which they start."""
    out = []
    while (flight := order.head(now)) is not None:
        start(order, flight, now=now)
        out.append((flight.ticket.group, flight.ticket.member))
    return out


def longest_first(lengths=(), patience=1000):
    return LongestFirst(Told(lengths), patience=patience)


ORDERS = {
    "fifo": lambda replicas: FifoOrder(),
    "affine": AffineOrder,
    "longest": lambda replicas: longest_first({1: 900, 4: 700}),
    "longest with homes": lambda replicas: LongestFirst(
        LengthPredictor(), patience=3, homes=PromptHomes(replicas)
    ),
}


@pytest.mark.parametrize("name", ORDERS)
@settings(deadline=None)
@given(data=st.data())
def test_every_ticket_that_waits_starts_exactly_once(name, data):
    replicas = ReplicaSlots({"a": 2, "b": 3}, PrefixAffinity())
    order = ORDERS[name](replicas)
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    waiting, running, started, added, now = set(), [], Counter(), 0, 0.0
    for _ in range(80):
        now += 1.0
        what = rng.random()
        if what < 0.3:
            group = group_of(added, rng.randint(1, 5))
            added += 1
            order.extend(group.flights)
            waiting.update(group.flights)
        elif what < 0.4 and waiting:
            gone = rng.choice(sorted(waiting, key=lambda flight: flight.ticket.group))
            gone.state = TicketState.DROPPED
            waiting.discard(gone)
        elif what < 0.5 and running:
            back = running.pop(rng.randrange(len(running)))
            replicas.release(back.replica, back.request)
            back.state, back.replica = TicketState.WAITING, None
            order.put_back([back])
            waiting.add(back)
            started[back] -= 1
        elif what < 0.8 and running:
            done = running.pop(rng.randrange(len(running)))
            if isinstance(order, LongestFirst):
                order.finished(done, 50, now)
            replicas.release(done.replica, done.request)
            done.state = TicketState.READY
        while not replicas.full and (flight := order.head(now)) is not None:
            request = Request(prefix=flight.ticket.group)
            replica = replicas.take(request=request)
            flight.request = request
            start(order, flight, replica, now)
            assert flight in waiting
            waiting.discard(flight)
            running.append(flight)
            started[flight] += 1
        assert replicas.full or not waiting
    assert set(started.values()) <= {0, 1}
    assert len(drain(order, now)) == len(waiting)


@pytest.mark.parametrize("name", ORDERS)
def test_a_group_that_begins_anew_waits_behind_those_that_wait(name):
    replicas = ReplicaSlots({"a": 2, "b": 3}, PrefixAffinity())
    order = LongestFirst(Told(), patience=1) if name.startswith("longest") else ORDERS[name](replicas)
    groups = [group_of(number, 2) for number in range(3)]
    for group in groups:
        order.extend(group.flights)
    start(order, order.head(0.0))
    for flight in groups[0].flights:
        flight.state = TicketState.DROPPED
    order.extend(group_of(0, 2).flights)
    assert {group for group, _ in drain(order)[:2]} <= {1, 2}


def test_fifo_goes_group_by_group_and_what_comes_back_goes_first():
    order = FifoOrder()
    groups = [group_of(number, 2) for number in range(2)]
    for group in groups:
        order.extend(group.flights)
    first = order.head(0.0)
    start(order, first)
    first.state = TicketState.WAITING
    order.put_back([first])
    assert drain(order) == [(0, 0), (0, 1), (1, 0), (1, 1)]


class TestAffineOrder:
    def replicas(self, **slots):
        return ReplicaSlots(slots, PrefixAffinity(slack=1.0))

    def run_one(self, order, replicas):
        flight = order.head(0.0)
        flight.request = Request(prefix=flight.ticket.group)
        start(order, flight, replicas.take(request=flight.request))
        return flight

    def test_a_slot_that_becomes_free_goes_to_the_group_of_that_replica(self):
        replicas = self.replicas(a=1, b=1)
        order = AffineOrder(replicas)
        for number in range(3):
            order.extend(group_of(number, 3).flights)
        running = {flight.replica: flight for flight in (self.run_one(order, replicas) for _ in range(2))}
        assert {name: flight.ticket.group for name, flight in running.items()} == {"a": 0, "b": 1}
        for name in "babbaa":
            done = running[name]
            replicas.release(name, done.request)
            done.state = TicketState.READY
            running[name] = self.run_one(order, replicas)
            if running[name].ticket.group < 2:
                assert running[name].ticket.group == done.ticket.group

    def test_a_group_is_passed_over_by_no_more_than_twice_as_many_groups_as_there_are_replicas(self):
        """Replica b never gives a slot back; its group goes on elsewhere all the same."""
        replicas = self.replicas(a=1, b=1)
        order = AffineOrder(replicas)
        for number in range(9):
            order.extend(group_of(number, 4).flights)
        self.run_one(order, replicas)
        self.run_one(order, replicas)
        groups = []
        running = next(flight for flight in order._begun[0][0].group.flights if flight.replica == "a")
        for _ in range(30):
            replicas.release("a", running.request)
            running.state = TicketState.READY
            running = self.run_one(order, replicas)
            groups.append(running.ticket.group)
        last_of_1 = len(groups) - 1 - groups[::-1].index(1)
        assert {group for group in groups[: last_of_1 + 1]} == {0, 1, 2, 3, 4, 5}


class TestLongestFirst:
    def test_the_group_with_the_greatest_prediction_goes_first(self):
        order = longest_first({0: 10, 1: 30, 2: 20})
        for number in range(3):
            order.extend(group_of(number, 2).flights)
        assert [group for group, _ in drain(order)] == [1, 1, 2, 2, 0, 0]

    def test_of_equal_groups_one_member_of_each_starts_first(self):
        order = longest_first()
        for number in range(3):
            order.extend(group_of(number, 2).flights)
        assert drain(order) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]

    def test_when_one_member_ends_long_its_siblings_move_up(self):
        order = longest_first()
        groups = [group_of(number, 3) for number in range(3)]
        for group in groups:
            order.extend(group.flights)
        for _ in range(3):
            start(order, order.head(0.0))
        ended = groups[2].flights[0]
        order._estimator.observe(2, "", 5000)
        order.finished(ended, 5000, 10.0)
        ended.state = TicketState.READY
        assert [group for group, _ in drain(order, 10.0)][:2] == [2, 2]

    def test_a_member_that_runs_without_an_end_moves_its_siblings_up(self):
        """Of equal groups, that whose member has run for longest goes first, once it is looked at anew."""
        order = longest_first()
        groups = [group_of(number, 20) for number in range(3)]
        for group in groups:
            order.extend(group.flights)
        late = {0: 50.0, 1: 0.0, 2: 90.0}
        for _ in range(3):
            flight = order.head(0.0)
            start(order, flight, now=late[flight.ticket.group])
        fast = group_of(9, 1).flights[0]
        fast.since, fast.state = 90.0, TicketState.RUNNING
        order.finished(fast, 100, 100.0)  # 10 tokens a second
        for _ in range(9):
            start(order, order.head(100.0), now=100.0)
        assert order.head(100.0).ticket.group == 1

    def test_no_group_is_passed_over_by_one_that_came_much_later(self):
        order = longest_first({number: float(number) for number in range(100)}, patience=5)
        order.extend(group_of(0, 1).flights)
        started = []
        for number in range(1, 100):
            order.extend(group_of(number, 1).flights)
            flight = order.head(0.0)
            start(order, flight)
            started.append(flight.ticket.group)
        place = {group: position for position, group in enumerate(started)}
        assert place[0] <= 6
        assert all(max(started[: place[group]], default=0) - group <= 5 for group in place)

    def test_a_group_nearly_as_long_starts_where_its_prompt_is(self):
        replicas = ReplicaSlots({"a": 1, "b": 1}, PrefixAffinity(slack=1.0))
        order = LongestFirst(Told({0: 100, 1: 95, 2: 30}), patience=99, homes=PromptHomes(replicas))
        for number in range(3):
            order.extend(group_of(number, 3).flights)
        running = {}

        def go():
            flight = order.head(0.0)
            flight.request = Request(prefix=flight.ticket.group)
            start(order, flight, replicas.take(request=flight.request))
            running[flight.replica] = flight

        def end(name):
            replicas.release(name, running[name].request)
            running[name].state = TicketState.READY

        go()
        assert running["a"].ticket.group == 0
        order._groups[0].length = 10  # so that the other group starts on b, not here too
        order._enter(order._groups[0])
        go()
        order._groups[0].length = 100
        order._enter(order._groups[0])
        assert running["b"].ticket.group == 1
        for name, group in (("b", 1), ("a", 0), ("b", 1)):
            end(name)
            go()
            assert running[name].ticket.group == group

    def test_what_is_kept_does_not_grow_with_the_tickets_that_pass(self):
        order = longest_first()
        for number in range(2000):
            group = group_of(number, 3)
            order.extend(group.flights)
            for _ in range(3):
                flight = order.head(float(number))
                start(order, flight, now=float(number))
                order.finished(flight, 10, number + 1.0)
                flight.state = TicketState.READY
        assert not order._groups and len(order._heap) <= 128
