"""Placement: the default router chooses as a look at every replica would, and slots are counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerError
from roll_scheduler.queueing.placement import ReplicaSlots


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


@settings(deadline=None)
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


def test_a_draining_replica_gets_nothing_until_it_is_wanted_again():
    replicas = ReplicaSlots({"a": 2, "b": 2})
    replicas.drain("a")
    assert [replicas.take() for _ in range(3)] == ["b", "b", None]
    assert not replicas.full
    replicas.drain("a", on=False)
    assert replicas.take() == "a"


def test_a_replica_that_is_to_be_avoided_is_taken_when_all_others_drain():
    replicas = ReplicaSlots({"a": 2, "b": 2})
    replicas.drain("a")
    assert replicas.take(frozenset({"b"})) == "b"


def test_health_does_not_end_a_drain():
    replicas = ReplicaSlots({"a": 2, "b": 2})
    replicas.drain("a")
    replicas.weigh("a", 1.0)
    assert replicas.take() == "b"


def test_a_replica_that_comes_back_drains_no_more():
    replicas = ReplicaSlots({"a": 2, "b": 2})
    replicas.drain("a")
    replicas.down("a", "restart", returns=True)
    replicas.up("a", 1)
    replicas.drain("b")
    assert replicas.take() == "a"


@pytest.mark.parametrize("call", ["drain", "down"])
def test_an_unknown_replica_is_named_with_those_there_are(call):
    replicas = ReplicaSlots({"a": 2})
    with pytest.raises(SchedulerError, match=r"'x' is not there; live replicas are \['a'\]"):
        getattr(replicas, call)(*(("x",) if call == "drain" else ("x", "test")))
