"""Generalised advantage estimation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import Segments, gae, response_tokens

ONE = Segments.of_lengths(torch.tensor([2]))


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand() -> None:
    result = gae(doubles(0, 1), doubles(0.5, 0.25), ONE, gamma=0.8, lam=0.5)
    # deltas: 0 + 0.8 x 0.25 - 0.5 = -0.3 and 1 - 0.25 = 0.75; -0.3 + 0.8 x 0.5 x 0.75 = 0
    assert result.advantages.tolist() == pytest.approx([0.0, 0.75])
    assert result.returns.tolist() == pytest.approx([0.5, 1.0])


def test_a_cut_sequence_goes_on_with_the_value_after_it() -> None:
    result = gae(doubles(0, 0), doubles(0, 0), ONE, gamma=0.5, lam=1.0, last_values=doubles(4))
    assert result.advantages.tolist() == [1.0, 2.0]


def test_what_the_environment_wrote_is_bridged_and_cannot_leak() -> None:
    mask = torch.tensor([[1, 0, 1, 0]])
    junk = float("nan")
    segments, rewards, values = response_tokens(
        mask, doubles(0, junk, 1, junk)[None], doubles(0.5, junk, 0.25, 9)[None]
    )
    result = gae(rewards, values, segments, gamma=0.8, lam=0.5)
    assert result.advantages.tolist() == pytest.approx([0.0, 0.75])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_sequences_do_not_mix(lengths: list[int]) -> None:
    segments = Segments.of_lengths(torch.tensor(lengths))
    generator = torch.Generator().manual_seed(sum(lengths))
    rewards = torch.rand(sum(lengths), generator=generator, dtype=torch.float64)
    values = torch.rand(sum(lengths), generator=generator, dtype=torch.float64)
    together = gae(rewards, values, segments, gamma=0.9, lam=0.7).advantages
    alone = [
        gae(r, v, Segments.of_lengths(torch.tensor([len(r)])), gamma=0.9, lam=0.7).advantages
        for r, v in zip(torch.split(rewards, lengths), torch.split(values, lengths), strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone))
