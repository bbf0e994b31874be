"""The search for the samples that make an update not finite."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners.culprits import PASSES, culprits


class Bench:
    """Members of which some are bad by themselves; counts what is asked."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.passes = 0
        self.members = 0

    def finite(self, members: Sequence[int]) -> bool:
        self.passes += 1
        self.members += len(members)
        return self.bad.isdisjoint(members)


def test_one_bad_sample_of_1024_is_found_at_the_price_of_two_updates() -> None:
    bench = Bench({700})
    assert culprits(range(1024), bench.finite) == [700]
    assert bench.passes == 20
    assert bench.members <= 2 * 1024


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.data())
def test_exactly_the_bad_ones_are_named_where_passes_suffice(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    assert culprits(range(size), Bench(bad).finite, passes=1000) == sorted(bad)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.data())
def test_a_search_is_bounded_and_never_leaves_a_bad_one_out(size: int, data: st.DataObject) -> None:
    bench = Bench(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    assert bench.bad <= set(culprits(range(size), bench.finite))
    assert bench.passes <= PASSES


def test_members_that_are_bad_only_together_are_all_named() -> None:
    assert culprits([4, 8, 15, 16], lambda members: len(members) < 4) == [4, 8, 15, 16]
    assert culprits([7], lambda members: False) == [7]
