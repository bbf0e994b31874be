import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_launch.data import DataError, PromptOrder


def epoch(order: PromptOrder, rows: int, number: int) -> list[int]:
    return [order.row(number * rows + position) for position in range(rows)]


@given(rows=st.integers(1, 200), seed=st.integers(0, 2**63), number=st.integers(0, 1000))
def test_every_row_is_used_once_an_epoch(rows: int, seed: int, number: int) -> None:
    assert sorted(epoch(PromptOrder(rows, seed), rows, number)) == list(range(rows))


@given(seed=st.integers(0, 2**63), occurrences=st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_row_depends_on_seed_and_occurrence_alone(seed: int, occurrences: list[int]) -> None:
    order = PromptOrder(37, seed)
    in_sequence = [order.row(occurrence) for occurrence in range(501)]
    resumed = PromptOrder(37, seed)
    assert [resumed.row(occurrence) for occurrence in occurrences] == [in_sequence[o] for o in occurrences]


def test_epochs_and_seeds_have_different_orders() -> None:
    order = PromptOrder(50, 0)
    orders = [epoch(order, 50, 0), epoch(order, 50, 1), epoch(PromptOrder(50, 1), 50, 0), list(range(50))]
    assert all(first != second for index, first in enumerate(orders) for second in orders[:index])


def test_the_order_stays_what_it_was_in_older_runs() -> None:
    order = PromptOrder(10, 0)
    assert epoch(order, 10, 0) == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


@pytest.mark.parametrize(("rows", "seed"), [(0, 0), (-1, 0), (3, -1)])
def test_an_order_of_nothing_is_refused(rows: int, seed: int) -> None:
    with pytest.raises(DataError, match="rows >= 1 and seed >= 0"):
        PromptOrder(rows, seed)


def test_a_negative_occurrence_is_refused() -> None:
    with pytest.raises(DataError, match="got occurrence -1"):
        PromptOrder(3, 0).row(-1)
