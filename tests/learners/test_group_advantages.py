"""Advantages within groups."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import ADVANTAGES, dr_grpo, grpo, lite_ppo, rloo, whiten, zero_spread

NAMES = ("grpo", "dr_grpo", "rloo", "lite_ppo")
NAN = math.nan


def rewards(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def advantage(name: str, values: torch.Tensor, groups: list[int]) -> list[float]:
    result: torch.Tensor = ADVANTAGES.bind(name, {"eps": 1e-6})(rewards=values, groups=torch.tensor(groups))
    return result.tolist()


def test_by_hand() -> None:
    values, groups = rewards(1, 0, 0, 0), torch.zeros(4, dtype=torch.int64)
    # mean 1/4, sample deviation sqrt((9 + 1 + 1 + 1) / 16 / 3) = 1/2
    assert grpo(values, groups, eps=0).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    # population deviation sqrt(12 / 16 / 4) = sqrt(3) / 4
    assert grpo(values, groups, eps=0, ddof=0).tolist() == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    assert dr_grpo(values, groups).tolist() == [0.75, -0.25, -0.25, -0.25]
    # the others' means: 0, and 1/3 for the rest
    assert rloo(values, groups).tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


def test_lite_ppo_divides_by_the_deviation_of_the_whole_batch() -> None:
    values = lite_ppo(rewards(1, 0, 1, 1), torch.tensor([0, 0, 1, 1]), eps=0)
    assert values.tolist() == pytest.approx([1, -1, 0, 0])  # all four: mean 3/4, deviation 1/2


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(reward=st.floats(-10, 10), size=st.integers(1, 7))
def test_a_group_without_a_spread_gets_exactly_zero(name: str, reward: float, size: int) -> None:
    assert advantage(name, rewards(*[reward] * size), [5] * size) == [0.0] * size


@pytest.mark.parametrize("name", NAMES)
def test_no_verdict_leaves_the_statistics_of_its_group(name: str) -> None:
    with_it = advantage(name, rewards(1, NAN, 0, 0.5), [0, 0, 0, 0])
    without = advantage(name, rewards(1, 0, 0.5), [0, 0, 0])
    assert with_it == pytest.approx([without[0], 0, *without[1:]])


@pytest.mark.parametrize("name", NAMES)
def test_one_verdict_alone_and_none_at_all_get_zero(name: str) -> None:
    assert advantage(name, rewards(1, NAN, NAN), [0, 0, 1]) == [0, 0, 0]
    assert advantage(name, rewards(NAN, NAN), [0, 0]) == [0, 0]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(st.permutations(range(8)))
def test_members_are_found_by_id_not_by_place(name: str, order: list[int]) -> None:
    values, groups = rewards(1, 0, 0, 1, 0.5, 1, 0, 0), [7, 7, 7, -2, -2, -2, 40, 40]
    expected = advantage(name, values, groups)
    shuffled = advantage(name, values[order], [groups[i] for i in order])
    assert shuffled == pytest.approx([expected[i] for i in order], abs=1e-12)


def test_whitened_values_have_mean_zero_and_deviation_one() -> None:
    values = whiten(rewards(1, 2, 3, 10))
    assert values.mean().item() == pytest.approx(0, abs=1e-12)
    assert values.std().item() == pytest.approx(1)


@pytest.mark.parametrize("values", [(), (3.0,), (2.0, 2.0, 2.0)])
def test_whitening_what_has_no_spread_gives_zero(values: tuple[float, ...]) -> None:
    assert whiten(rewards(*values)).tolist() == [0.0] * len(values)


def test_zero_spread_looks_at_groups_with_a_verdict() -> None:
    spread = zero_spread(rewards(1, 1, 0, 1, NAN, NAN, 3), torch.tensor([4, 4, 2, 2, 9, 4, 8]))
    assert spread.tolist() == [False, True, True]  # groups 2, 4, 8
    assert zero_spread(rewards(NAN), torch.tensor([0])).tolist() == []
