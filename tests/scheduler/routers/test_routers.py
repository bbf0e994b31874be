"""Routers: what each promises, and what all of them do."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import Request, Router, SchedulerError, check_router
from roll_scheduler.routers import (
    ROUTERS,
    LeastLoaded,
    PowerOfTwo,
    PrefixAffinity,
    RoundRobin,
    SessionAffinity,
)
from roll_scheduler.routers.loads import Loads


def with_replicas(router, **slots):
    for name, size in slots.items():
        router.up(name, size)
    return router


@pytest.mark.parametrize("name", sorted(ROUTERS))
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_every_router_conforms(name, seed):
    assert isinstance(ROUTERS[name](0, None), Router)
    assert check_router(lambda: ROUTERS[name](7, None), seed=seed) == []


class Careless(LeastLoaded):
    """Forgets what it must avoid."""

    def take(self, request, avoid=()):
        return super().take(request)


class Hoarder(LeastLoaded):
    """Keeps slots free without a reason."""

    def take(self, request, avoid=()):
        return None if request.prefix == 2 else super().take(request, avoid)


@pytest.mark.parametrize("wrong", [Careless, Hoarder])
def test_the_conformance_test_finds_a_router_that_does_not_conform(wrong):
    assert check_router(wrong) != []


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_a_request_without_kv_room_waits_unless_it_would_be_alone(name):
    router = with_replicas(ROUTERS[name](0, 100), a=4, b=4)
    big, small = Request(tokens=1, kv=80), Request(tokens=1, kv=20)
    first = router.take(big)
    second = router.take(Request(tokens=1, kv=500))
    assert {first, second} == {"a", "b"}
    assert router.take(big) is None
    assert router.take(small) == first
    router.release(second, Request(tokens=1, kv=500))
    assert router.take(big) == second


def test_round_robin_goes_round_and_a_full_replica_keeps_its_turn():
    router = with_replicas(RoundRobin(), a=1, b=3, c=3)
    asked = [router.take(Request()) for _ in range(6)]
    assert asked == ["a", "b", "c", "b", "c", "b"]
    router.release("a", Request())
    assert [router.take(Request()), router.take(Request())] == ["a", "c"]


def test_least_tokens_gives_less_to_a_replica_with_long_requests():
    router = with_replicas(LeastLoaded(by_tokens=True), a=8, b=8)
    assert router.take(Request(tokens=1000)) == "a"
    assert [router.take(Request(tokens=300)) for _ in range(4)] == ["b", "b", "b", "b"]
    assert router.take(Request(tokens=300)) == "a"


def test_a_weight_of_a_half_gets_half_as_much():
    router = with_replicas(LeastLoaded(), a=90, b=90)
    router.report("a", 0.5)
    taken = Counter(router.take(Request()) for _ in range(90))
    assert taken == {"a": 30, "b": 60}


def test_two_choices_are_far_better_balanced_than_one():
    router = with_replicas(PowerOfTwo(seed=3), **{f"r{number}": 1000 for number in range(50)})
    taken = Counter(router.take(Request()) for _ in range(5000))
    assert max(taken.values()) - 100 <= 5  # one choice leaves some 25


class TestPrefixAffinity:
    def test_members_follow_their_prompt_up_to_the_slack(self):
        router = with_replicas(PrefixAffinity(slack=0.25), a=8, b=8)
        taken = [router.take(Request(prefix=1)) for _ in range(6)]
        assert taken == ["a", "a", "a", "b", "b", "b"]

    def test_a_prompt_that_has_left_a_replica_is_forgotten(self):
        router = with_replicas(PrefixAffinity(), a=8, b=8)
        assert router.take(Request(prefix=1)) == "a"
        router.release("a", Request(prefix=1))
        router.take(Request())
        assert router.take(Request(prefix=1)) == "b"
        assert router._holders == {1: {"b": 1}}

    def test_no_slot_stays_free_while_a_request_waits(self):
        router = with_replicas(PrefixAffinity(), a=2, b=2)
        assert Counter(router.take(Request(prefix=1)) for _ in range(5)) == {"a": 2, "b": 2, None: 1}

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=100), st.floats(0, 1))
    def test_no_replica_has_more_than_the_slack_above_the_least_loaded(self, prefixes, slack):
        router = with_replicas(PrefixAffinity(slack=slack), a=16, b=16, c=16)
        taken = Counter(dict.fromkeys("abc", 0))
        for prefix in prefixes:
            if (name := router.take(Request(prefix=prefix))) is None:
                break
            taken[name] += 1
            assert max(taken.values()) - min(taken.values()) <= 16 * slack + 1


class TestSessionAffinity:
    def test_a_session_stays_where_it_is_in_every_process(self):
        names = {f"r{number}": 100 for number in range(5)}
        first, second = with_replicas(SessionAffinity(), **names), with_replicas(SessionAffinity(), **names)
        for turn in range(3):
            for number in range(40):
                request = Request(session=f"s{number}")
                name = first.take(request)
                if turn:
                    assert name == second.take(request)
                    second.release(name, request)
                first.release(name, request)

    def test_only_the_sessions_of_a_replica_that_leaves_move(self):
        router = with_replicas(SessionAffinity(), **{f"r{number}": 10**6 for number in range(8)})
        homes = {}
        for number in range(400):
            homes[number] = router.take(Request(session=number))
            router.release(homes[number], Request(session=number))
        router.down("r3")
        for number, home in homes.items():
            name = router.take(Request(session=number))
            router.release(name, Request(session=number))
            assert (name == home) == (home != "r3")
        shares = Counter(homes.values())
        assert len(shares) == 8 and max(shares.values()) < 2 * 400 / 8

    def test_a_popular_session_spills_within_the_bound(self):
        router = with_replicas(SessionAffinity(imbalance=1.5), **{f"r{number}": 100 for number in range(4)})
        taken = Counter(router.take(Request(session="popular")) for _ in range(100))
        assert max(taken.values()) <= 1.5 * 100 / 4 + 1

    def test_a_session_stays_with_the_kv_where_it_has_spilled(self):
        request = Request(session="s")
        router = with_replicas(SessionAffinity(imbalance=1.5), a=10, b=10)
        home = router.take(request)
        count = 1
        while (spilled := router.take(request)) == home:
            count += 1
        for _ in range(count):
            router.release(home, request)
        assert router.take(request) == spilled

    def test_what_is_remembered_is_bounded(self):
        router = with_replicas(SessionAffinity(imbalance=1.01, remembered=10), a=500, b=500)
        for number in range(900):
            router.take(Request(session=number))
        assert len(router._spilled) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrefixAffinity(slack=1.5), r"PrefixAffinity.slack: got 1.5, allowed is 0 to 1"),
        (lambda: SessionAffinity(imbalance=1.0), r"SessionAffinity.imbalance: got 1.0, allowed is > 1"),
        (lambda: SessionAffinity(remembered=-1), r"SessionAffinity.remembered: got -1, allowed is >= 0"),
        (lambda: with_replicas(LeastLoaded(), a=0), r"replica 'a': got 0 slots, allowed is an integer >= 1"),
        (lambda: with_replicas(LeastLoaded(), a=1).up("a", 1), r"'a' is there already"),
        (lambda: with_replicas(LeastLoaded(), a=1).report("a", 1.5), r"got weight 1.5, allowed is 0 to 1"),
        (
            lambda: with_replicas(LeastLoaded(), a=1).report("b", 1),
            r"'b' is not there; live replicas are \['a'\]",
        ),
        (lambda: with_replicas(RoundRobin(), a=1).down("b"), r"'b' is not there"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(SchedulerError, match=message):
        make()


def test_what_is_kept_does_not_grow_with_the_requests_that_pass():
    loads = Loads()
    for name in "abcd":
        loads.up(name, 100)
    for _ in range(50):
        taken = []
        while (load := loads.least(Request(), ())) is not None:
            loads.add(load, Request())
            taken.append(load.name)
        assert len(taken) == 400
        for name in taken:
            loads.remove(name, Request())
    assert len(loads._heap) <= 16


def test_no_rest_of_floats_is_left_when_a_replica_is_empty():
    router = with_replicas(LeastLoaded(by_tokens=True), a=10, b=10)
    requests = [Request(tokens=0.1 * number) for number in range(1, 8)]
    placed = [(router.take(request), request) for request in requests]
    for name, request in placed:
        router.release(name, request)
    assert router.take(Request()) == "a"


@pytest.mark.timeout(10)
def test_a_ring_of_thousands_of_replicas_is_made_at_once():
    router = with_replicas(SessionAffinity(), **{f"r{number}": 1 for number in range(4096)})
    assert router.take(Request(session="s")) is not None
