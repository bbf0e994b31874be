"""Micro-batches hold every sample once, within budget, at least cost."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_learners import LearnerError
from roll_learners.microbatch import plan_micro_batches

lengths_strategy = st.lists(st.integers(1, 30), max_size=40)


@given(lengths_strategy, st.integers(30, 200), st.integers(0, 100))
def test_every_sample_is_in_one_micro_batch_within_budget(
    lengths: list[int], budget: int, launch: int
) -> None:
    array = np.array(lengths, np.int64)
    plan = plan_micro_batches(array, budget=budget, launch_tokens=launch)
    assert sorted(i for part in plan for i in part) == list(range(len(lengths)))
    assert all(len(part) * array[part].max() <= budget for part in plan)
    again = plan_micro_batches(array, budget=budget, launch_tokens=launch)
    assert [part.tolist() for part in plan] == [part.tolist() for part in again]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(20, 60), st.integers(0, 40))
def test_no_division_of_the_sorted_samples_costs_less(lengths: list[int], budget: int, launch: int) -> None:
    ascending = sorted(lengths)

    def cost(parts: list[list[int]]) -> float:
        padded = [len(part) * max(part) for part in parts]
        return sum(padded) + launch * len(parts) if max(padded) <= budget else float("inf")

    best = float("inf")
    for cuts in itertools.product((False, True), repeat=len(ascending) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(ascending)]
        best = min(best, cost([ascending[a:b] for a, b in itertools.pairwise(edges)]))
    plan = plan_micro_batches(np.array(lengths), budget=budget, launch_tokens=launch)
    assert cost([[lengths[i] for i in part] for part in plan]) == best


def test_the_longest_come_first() -> None:
    plan = plan_micro_batches(np.array([2, 90, 3, 80]), budget=180, launch_tokens=20)
    assert [sorted(part.tolist()) for part in plan] == [[1, 3], [0, 2]]


def test_a_sample_longer_than_the_budget_is_named() -> None:
    with pytest.raises(
        LearnerError, match="a sample feeds 12 tokens to the model, but micro_batch_tokens is 10"
    ):
        plan_micro_batches(np.array([3, 12]), budget=10)
