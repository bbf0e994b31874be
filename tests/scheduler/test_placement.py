"""Placement: the heap of loads chooses as a look at every replica would."""

from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler.placement import ReplicaSlots


def least_loaded(slots, running, avoid):
    """The replica that a scan finds, in the order in which they came up."""
    unwanted = set() if avoid >= slots.keys() else avoid
    loads = {
        name: running[name] / size
        for name, size in slots.items()
        if running[name] < size and name not in unwanted
    }
    return min(loads, key=loads.__getitem__, default=None)


NAMES = ("a", "b", "c", "d")
STEPS = st.one_of(
    st.tuples(st.just("take"), st.frozensets(st.sampled_from(NAMES))),
    st.tuples(st.just("release"), st.sampled_from(NAMES)),
    st.tuples(st.just("down"), st.sampled_from(NAMES)),
    st.tuples(st.just("up"), st.tuples(st.sampled_from(NAMES), st.integers(1, 5))),
)


@given(st.lists(STEPS, max_size=80))
def test_it_takes_the_least_loaded_and_of_equals_the_one_that_came_up_first(steps):
    replicas, slots, running = ReplicaSlots({"a": 3}), {"a": 3}, {"a": 0}
    for step, what in steps:
        if step == "take":
            expected = least_loaded(slots, running, what)
            assert replicas.take(what) == expected
            if expected is not None:
                running[expected] += 1
        elif step == "release" and running.get(what):
            replicas.release(what)
            running[what] -= 1
        elif step == "down" and what in slots:
            replicas.down(what, "test")
            del slots[what], running[what]
        elif step == "up" and what[0] not in slots:
            replicas.up(*what)
            slots[what[0]], running[what[0]] = what[1], 0
        assert replicas.full == all(running[name] == size for name, size in slots.items())


def test_what_it_keeps_does_not_grow_with_the_tickets_that_pass():
    replicas = ReplicaSlots({name: 100 for name in NAMES})
    for _ in range(50):
        taken = [replicas.take() for _ in range(400)]
        assert replicas.take() is None
        for name in taken:
            replicas.release(name)
    assert len(replicas._by_load) <= 4 * len(NAMES)
