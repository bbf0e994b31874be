"""Flat tokens with segment ids."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import Segments, Totals, response_tokens


def test_sums_means_and_spread_follow_the_sequences() -> None:
    segments = Segments.of_lengths(torch.tensor([2, 0, 1]))
    values = torch.tensor([1.0, 3.0, 5.0])
    assert segments.ids.tolist() == [0, 0, 2]
    assert segments.sums(values).tolist() == [4, 0, 5]
    assert segments.means(values).tolist() == [2, 0, 5]
    assert segments.spread(torch.tensor([7.0, 8.0, 9.0])).tolist() == [7, 7, 9]


def test_totals_count_sequences_with_a_token() -> None:
    assert Totals.of_lengths(torch.tensor([2, 0, 1])) == Totals(tokens=3, sequences=2)


@settings(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_selection_keeps_each_token_under_the_mask_once_and_in_order(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)
    places = torch.arange(mask.numel()).reshape(mask.shape)
    segments, flat = response_tokens(mask, places)
    assert flat.tolist() == [int(place) for place in places.flatten() if mask.flatten()[place]]
    assert segments.ids.tolist() == [int(place) // 4 for place in flat]
    assert segments.lengths.tolist() == [sum(row) for row in rows]


def test_masked_content_reaches_neither_value_nor_gradient() -> None:
    padded = torch.tensor([[1.0, float("nan")], [float("inf"), -float("inf")]], requires_grad=True)
    segments, flat = response_tokens(torch.tensor([[1, 0], [0, 0]]), padded)
    loss = segments.means(flat.exp()).sum()
    loss.backward()
    assert loss.item() == torch.tensor(1.0).exp().item()
    assert padded.grad is not None
    assert padded.grad.tolist() == [[loss.item(), 0.0], [0.0, 0.0]]
