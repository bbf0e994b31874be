"""Four means, each the same for every split of the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import AGGREGATIONS, Segments, Totals, token_mean
from roll_learners.aggregation import constant_divisor, seq_mean_token_mean, seq_mean_token_sum

# Two sequences with losses [4] and [1, 1, 1].
LOSSES = torch.tensor([4.0, 1.0, 1.0, 1.0], dtype=torch.float64)
SEGMENTS = Segments.of_lengths(torch.tensor([1, 3]))
TOTALS = Totals(tokens=4, sequences=2)


def test_by_hand() -> None:
    assert token_mean(LOSSES, TOTALS).item() == 7 / 4
    assert seq_mean_token_mean(LOSSES, SEGMENTS, TOTALS).item() == (4 + 1) / 2
    assert seq_mean_token_sum(LOSSES, TOTALS).item() == (4 + 3) / 2
    assert constant_divisor(LOSSES, TOTALS, horizon=10).item() == pytest.approx(7 / (2 * 10))


@pytest.mark.parametrize("name", AGGREGATIONS.names())
def test_gradients_are_right(name: str) -> None:
    aggregate = AGGREGATIONS.bind(name, {"horizon": 10})
    losses = LOSSES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: aggregate(losses=x, segments=SEGMENTS, totals=TOTALS), (losses,)
    )


@pytest.mark.parametrize("name", AGGREGATIONS.names())
@settings(max_examples=30)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6), data=st.data())
def test_shares_of_any_split_add_up_to_the_whole(name: str, lengths: list[int], data: st.DataObject) -> None:
    aggregate = AGGREGATIONS.bind(name, {"horizon": 10})
    rows = [torch.rand(length, dtype=torch.float64) for length in lengths]
    totals = Totals.of_lengths(torch.tensor(lengths))

    def share(chosen: list[int], ranks: int = 1) -> float:
        segments = Segments.of_lengths(torch.tensor([lengths[i] for i in chosen], dtype=torch.int64))
        losses = torch.cat([rows[i] for i in chosen] or [torch.zeros(0, dtype=torch.float64)])
        value: torch.Tensor = aggregate(losses=losses, segments=segments, totals=totals._replace(ranks=ranks))
        return value.item()

    homes = [data.draw(st.integers(0, 2)) for _ in lengths]
    split = [[i for i, home in enumerate(homes) if home == part] for part in range(3)]
    whole = share(list(range(len(lengths))))
    assert sum(share(part) for part in split) == pytest.approx(whole, abs=1e-12)
    assert sum(share(part, ranks=3) for part in split) / 3 == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("name", AGGREGATIONS.names())
def test_a_batch_without_a_token_costs_nothing(name: str) -> None:
    losses = torch.zeros(0, requires_grad=True)
    segments = Segments.of_lengths(torch.tensor([0, 0]))
    loss = AGGREGATIONS.bind(name, {"horizon": 10})(
        losses=losses, segments=segments, totals=Totals(tokens=0, sequences=0)
    )
    loss.backward()
    assert loss.item() == 0.0


def test_the_sequence_mean_ignores_a_sequence_without_a_token() -> None:
    segments = Segments.of_lengths(torch.tensor([1, 0, 3]))
    assert seq_mean_token_mean(LOSSES, segments, TOTALS).item() == 2.5
