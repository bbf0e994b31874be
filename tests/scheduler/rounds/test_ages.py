"""Counts of groups by version are at any time what counting anew gives."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler import Ticket, TicketState
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.rounds.ages import GroupAges


def new_group(number, size):
    group = FlightGroup(number, size)
    for member in range(size):
        ticket = Ticket(id=number * size + member, group=number, member=member, attempt=0, seed=0)
        group.flights.append(Flight(ticket, group, 0.0))
    return group


STEPS = st.tuples(
    st.sampled_from(["send", "recall", "sample", "complete", "end", "publish"]),
    st.integers(0, 3),
    st.integers(0, 1),
    st.integers(-1, 1),
)


@given(st.lists(STEPS, max_size=60))
def test_counts_follow_every_event(steps):
    ages, version = GroupAges(), 5
    under_way, ready = {number: new_group(number, 2) for number in range(4)}, {}
    for step, number, member, offset in steps:
        group = under_way.get(number)
        if step == "publish":
            version += 1
        elif step == "end" and number in ready:
            ages.ended(ready.pop(number), ready=True)
        elif group is None:
            continue
        elif step == "send" and group.flights[member].state is TicketState.WAITING:
            group.flights[member].state, group.flights[member].oldest = TicketState.RUNNING, version
            ages.sent(group, version)
        elif step == "recall":
            group.flights[member].state = TicketState.WAITING
            ages.changed(group)
        elif step == "sample" and group.flights[member].state is TicketState.RUNNING:
            group.flights[member].state, group.flights[member].oldest = TicketState.GRADING, version + offset
            ages.changed(group)
        elif step == "complete":
            group.oldest = version + offset
            ready[number] = under_way.pop(number)
            ages.completed(group)
        elif step == "end":
            ages.ended(under_way.pop(number), ready=False)
        sent = [group.sent_at() for group in under_way.values()]
        assert ages.unfinished == Counter(at for at in sent if at is not None)
        assert ages.ready == Counter(group.oldest for group in ready.values())
        assert all(ages.unfinished.values()) and all(ages.ready.values()), "no version stays for ever"
