"""Arithmetic of versions."""

import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerSnapshot, admissible, choose_groups, may_train, staleness
from roll_scheduler.rounds.staleness import groups_ahead, must_wait, oldest_share


def test_synchronous_bound_admits_one_batch():
    assert admissible(groups_per_batch=32, max_staleness=0, outstanding=0) == 32
    assert admissible(groups_per_batch=32, max_staleness=0, outstanding=32) == 0


def test_room_is_never_negative():
    assert admissible(groups_per_batch=4, max_staleness=1, outstanding=9) == 0


def test_staleness_counts_publications_and_an_engine_ahead_is_not_stale():
    assert staleness(version=6, oldest_version=3) == 3
    assert staleness(version=6, oldest_version=7) == 0


def test_the_bound_itself_may_be_trained():
    assert may_train(version=6, oldest_version=4, max_staleness=2)
    assert not may_train(version=6, oldest_version=3, max_staleness=2)


def choose(ready, unfinished, *, version, max_staleness=1, groups_per_batch=2):
    return choose_groups(
        ready, unfinished, version=version, max_staleness=max_staleness, groups_per_batch=groups_per_batch
    )


def test_oldest_groups_go_first():
    assert choose([(1, 7), (0, 9), (1, 3)], [], version=1) == [9, 3]


def test_batch_waits_for_a_group_that_would_be_stale_in_the_next_one():
    assert choose([(1, 4), (1, 5), (1, 6)], [0], version=1) is None
    assert choose([(0, 1), (1, 4), (1, 5)], [], version=1) == [1, 4]


def test_batch_does_not_wait_for_a_group_that_may_come_later():
    assert choose([(1, 4), (1, 5)], [1, 1], version=1) == [4, 5]


def test_batch_does_not_wait_for_a_group_that_is_stale_already():
    assert choose([(3, 4), (3, 5)], [1], version=3) == [4, 5]


def test_batch_leaves_no_more_old_groups_than_later_batches_can_take():
    young = [(1, 10), (1, 11)]
    assert choose(young, [0, 0], version=1, max_staleness=2) == [10, 11]
    assert choose(young, [0, 0, 0], version=1, max_staleness=2) is None


@given(
    ready=st.lists(st.integers(0, 9), max_size=12),
    unfinished=st.lists(st.integers(0, 9), max_size=12),
    max_staleness=st.integers(0, 4),
    groups_per_batch=st.integers(1, 4),
)
def test_a_refusal_always_has_an_unfinished_group_to_wait_for(
    ready, unfinished, max_staleness, groups_per_batch
):
    pairs = [(oldest, group) for group, oldest in enumerate(ready)]
    chosen = choose(
        pairs, unfinished, version=9, max_staleness=max_staleness, groups_per_batch=groups_per_batch
    )
    if chosen is None:
        assert any(9 - max_staleness <= at < 9 for at in unfinished)
    else:
        assert len(chosen) == min(groups_per_batch, len(ready)) == len(set(chosen))


@given(
    ready=st.lists(st.integers(0, 9), max_size=12),
    unfinished=st.lists(st.integers(0, 9), max_size=12),
    max_staleness=st.integers(0, 4),
    groups_per_batch=st.integers(1, 4),
)
def test_a_choice_is_refused_exactly_if_it_leaves_more_old_groups_than_later_batches_can_take(
    ready, unfinished, max_staleness, groups_per_batch
):
    pairs = [(oldest, group) for group, oldest in enumerate(ready)]
    taken = sorted(ready)[:groups_per_batch]
    refused = False
    for later in range(max_staleness):
        last = 9 - max_staleness + later
        old = [at for at in [*ready, *(at for at in unfinished if at >= 9 - max_staleness)] if at <= last]
        due_now = min(groups_per_batch, len(old) - later * groups_per_batch)
        refused = refused or sum(at <= last for at in taken) < due_now
    chosen = choose(
        pairs, unfinished, version=9, max_staleness=max_staleness, groups_per_batch=groups_per_batch
    )
    assert (chosen is None) == refused


@pytest.mark.parametrize("unfinished", [[], [0, 0, 3]])
def test_the_synchronous_bound_never_waits(unfinished):
    assert choose([(3, 0), (3, 1)], unfinished, version=3, max_staleness=0) == [0, 1]


@pytest.mark.parametrize(
    ("bound", "groups", "ahead", "share"),
    [
        (0, 8, 0, 8),
        (0.5, 8, 4, 4),
        (0.5, 3, 2, 2),
        (1, 8, 8, 8),
        (1.25, 8, 10, 2),
        (2.0, 8, 16, 8),
        (0.1, 30, 3, 3),
    ],
)
def test_a_fraction_bounds_what_is_ahead_and_the_share_of_the_oldest(bound, groups, ahead, share):
    sizes = {"groups_per_batch": groups, "max_staleness": bound}
    assert (groups_ahead(**sizes), oldest_share(**sizes)) == (ahead, share)
    assert admissible(**sizes, outstanding=0) == groups + ahead
    assert may_train(version=9, oldest_version=9 - math.ceil(bound), max_staleness=bound)
    assert not may_train(version=9, oldest_version=8 - math.ceil(bound), max_staleness=bound)


def test_a_batch_takes_no_more_of_the_oldest_than_their_share():
    assert choose([(0, 1), (0, 2), (1, 3), (1, 4)], [], version=1, max_staleness=0.5) == [1, 3]
    assert choose([(0, 1), (0, 2)], [], version=1, max_staleness=0.5) == [1]


def lost(groups, *, version, bound, size):
    """How many groups expire if each batch from `version` on takes the oldest that it may."""
    share, left, gone = oldest_share(groups_per_batch=size, max_staleness=bound), sorted(groups), 0
    for at in range(version, version + math.ceil(bound) + 1):
        gone += sum(oldest < at - math.ceil(bound) for oldest in left)
        left = [oldest for oldest in left if oldest >= at - math.ceil(bound)]
        expiring = [oldest for oldest in left if oldest == at - math.ceil(bound)]
        younger = [oldest for oldest in left if oldest > at - math.ceil(bound)]
        left = expiring[share:] + younger[max(0, size - len(expiring[:share])) :]
    return gone + sum(oldest < version + 1 for oldest in left)


@given(
    ready=st.lists(st.integers(5, 9), max_size=6),
    unfinished=st.lists(st.integers(5, 9), max_size=6),
    bound=st.sampled_from([1, 2, 3, 0.5, 1.5, 2.4]),
    size=st.integers(1, 4),
)
@settings(suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_a_batch_waits_exactly_when_going_on_would_lose_a_group_that_waiting_saves(
    ready, unfinished, bound, size
):
    """So the rule is as loose as it can be without dropping anything."""
    version = 9
    fresh = [oldest for oldest in ready if oldest >= version - math.ceil(bound)]
    slow = [oldest for oldest in unfinished if oldest >= version - math.ceil(bound)]
    pairs = [(oldest, number) for number, oldest in enumerate(fresh)]
    chosen = choose(pairs, slow, version=version, max_staleness=bound, groups_per_batch=size)
    taken = choose(pairs, [], version=version, max_staleness=bound, groups_per_batch=size)
    assume(len(taken) == size)  # a smaller batch is made only of the last prompts
    kept = [oldest for number, oldest in enumerate(fresh) if number not in taken]
    # What is left expires below the next version's bound before the next batch.
    now = lost([*kept, *slow], version=version + 1, bound=bound, size=size)
    waiting = lost([*fresh, *slow], version=version, bound=bound, size=size)
    assume(not waiting)  # admission sees to that, unless groups are over-provisioned
    assert (chosen is None) == (now > 0)


def waits_by_each_batch_to_come(ready, unfinished, *, version, max_staleness, groups_per_batch):
    """What `must_wait` says, by looking at every batch to come."""
    bound = math.ceil(max_staleness)
    share = oldest_share(groups_per_batch=groups_per_batch, max_staleness=max_staleness)
    for to_come in range(bound):
        last = version - bound + to_come
        old = sum(count for at, count in ready.items() if at <= last)
        slow = sum(count for at, count in unfinished.items() if version - bound <= at <= last)
        later = (to_come - 1) * groups_per_batch + share if to_come else 0
        now = groups_per_batch if to_come else share
        if min(old, now) < min(old + slow - later, now):
            return True
    return False


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), max_size=12),
    st.sampled_from([0, 0.5, 1, 1.25, 2, 2.5, 4, 7]),
    st.integers(1, 5),
)
def test_looking_at_a_few_batches_to_come_is_looking_at_all(
    ready, unfinished, max_staleness, groups_per_batch
):
    sizes = {"version": 9, "max_staleness": max_staleness, "groups_per_batch": groups_per_batch}
    counts = Counter(ready), Counter(unfinished)
    assert must_wait(*counts, **sizes) == waits_by_each_batch_to_come(*counts, **sizes)


@pytest.mark.timeout(10)
def test_a_bound_that_allows_almost_anything_costs_nothing(core_run):
    run = core_run(max_staleness=1_000_000, core={"resume": SchedulerSnapshot(version=2_000_000)})
    run.do(run.core.admit(0.0))
    run.do(run.core.admit(0.0))
    run.finish(0, 1, 2)
    for _ in range(20):
        assert run.take() is None
    run.finish(3)
    assert run.take() == [0, 1]
