"""Rewards token by token and their discounted sums."""

import pytest
import torch
from roll_learners import Segments, reinforce, token_rewards

SEGMENTS = Segments.of_lengths(torch.tensor([2, 0, 3]))


def test_a_score_sits_on_the_last_token_of_its_sequence() -> None:
    assert token_rewards(torch.tensor([1.0, 5.0, -2.0]), SEGMENTS).tolist() == [0, 1, 0, 0, -2]


def test_kl_is_taken_off_every_token() -> None:
    kl = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    rewards = token_rewards(torch.tensor([1.0, 5.0, -2.0]), SEGMENTS, kl=kl, coef=0.5)
    assert rewards.tolist() == [-0.5, 0.0, -1.5, -2.0, -4.5]


def test_returns_by_hand() -> None:
    returns = reinforce(torch.tensor([1.0, 2.0, 0.0, 0.0, 4.0]), SEGMENTS, gamma=0.5)
    assert returns.tolist() == [2, 2, 1, 2, 4]


def test_without_a_discount_every_token_gets_the_score() -> None:
    rewards = token_rewards(torch.tensor([1.0, 5.0, -2.0]), SEGMENTS)
    assert reinforce(rewards, SEGMENTS).tolist() == [1, 1, -2, -2, -2]


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_token_has_no_return(lengths: list[int]) -> None:
    segments = Segments.of_lengths(torch.tensor(lengths, dtype=torch.int64))
    assert reinforce(torch.zeros(0), segments).tolist() == []
