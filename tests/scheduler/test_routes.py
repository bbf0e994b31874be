"""Routes: requests under way, and what moves when a replica is drained or lost."""

import pytest
from roll_scheduler import LeastLoaded, Move, Request, Routes, SchedulerError


@pytest.fixture
def routes():
    routes = Routes(LeastLoaded())
    routes.up("a", 2)
    routes.up("b", 2)
    return routes


def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new(routes):
    assert routes.place(1) == "a"
    routes.drain("a")
    assert [routes.place(2), routes.place(3), routes.place(4)] == ["b", "b", None]
    assert routes.where(1) == "a" and routes.where(4) is None
    routes.weigh("a", 1.0)
    assert routes.place(4) == "a"


def test_migrating_moves_what_runs_and_says_what_has_to_wait(routes):
    for number in (1, 2, 3):
        routes.place(number, Request(prefix=number))
    assert routes.migrate("a") == [Move(1, "b"), Move(3, None)]
    assert routes.where(1) == "b" and len(routes) == 2
    routes.end(2)
    assert routes.place(3) == "b"


def test_what_ran_on_a_lost_replica_is_placed_anew(routes):
    routes.place(1)
    assert routes.down("a") == [Move(1, "b")]
    assert routes.down("b") == [Move(1, None)]
    routes.up("a", 1)
    assert routes.place(1) == "a"


def test_an_id_cannot_be_under_way_twice_and_may_end_twice(routes):
    routes.place(1)
    with pytest.raises(SchedulerError, match="request 1 is under way on 'a' already"):
        routes.place(1)
    routes.end(1)
    routes.end(1)
    assert len(routes) == 0
