"""Routes: requests under way, and what moves when a replica is drained or lost."""

import pytest
from roll_scheduler import ROUTERS, LeastLoaded, Move, Request, Routes, SchedulerError


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


def test_a_replica_that_is_not_there_is_an_error_by_name(routes):
    for call in (routes.down, routes.drain, routes.migrate):
        with pytest.raises(SchedulerError, match="replica 'c' is not there; live replicas are"):
            call("c")


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("tokens", [float("nan"), float("inf"), -1.0])
def test_a_request_without_a_number_of_tokens_is_refused_and_costs_no_slot(router, tokens):
    routes = Routes(ROUTERS[router](0, None))
    routes.up("a", 1)
    with pytest.raises(SchedulerError, match=r"replica 'a': got Request\(tokens="):
        routes.place("broken", Request(tokens=tokens, session="s"))
    assert routes.place("sound") == "a"


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_slot_that_nobody_has_cannot_be_released(router):
    made = ROUTERS[router](0, None)
    made.up("a", 1)
    with pytest.raises(
        SchedulerError, match=r"replica 'a': a slot was released, allowed is that of what runs"
    ):
        made.release("a", Request())
    with pytest.raises(SchedulerError, match=r"replica 'b' is not there"):
        made.release("b", Request())


@pytest.mark.parametrize("slots", [0, 2.5, float("nan"), True, "2"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_slots_are_a_whole_number(router, slots):
    with pytest.raises(SchedulerError, match=r"replica 'a': got .* slots, allowed is an integer >= 1"):
        ROUTERS[router](0, None).up("a", slots)


@pytest.mark.parametrize("kv_tokens", [0, float("nan")])
def test_kv_for_less_than_a_token_is_refused(kv_tokens):
    with pytest.raises(SchedulerError, match=r"kv_tokens: got .*, allowed is >= 1 or None"):
        LeastLoaded(kv_tokens=kv_tokens)
