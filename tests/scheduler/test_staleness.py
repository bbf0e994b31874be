"""Arithmetic of versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler import admissible, choose_groups, may_train, staleness


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
