"""Metrics over micro-batches and over updates are those of all tokens at once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners.metrics import MetricTally, merge_updates, prefixed, summary
from roll_learners.objective import Metric


def tallied(parts: list[list[float]]) -> dict[str, float]:
    tally = MetricTally()
    for part in parts:
        values = torch.tensor(part, dtype=torch.float64)
        tally.add(
            {
                "gap": Metric(values, "spread"),
                "kl": Metric(values, "mean"),
                "loss": Metric(values.sum(), "sum"),
            }
        )
    return tally.results()


def test_by_hand() -> None:
    assert tallied([[1.0, 3.0], [5.0]]) == {
        "gap_mean": 3.0,
        "gap_max": 5.0,
        "gap_std": pytest.approx((8 / 3) ** 0.5),
        "kl": 3.0,
        "loss": 9.0,
    }


def test_a_metric_without_a_value_is_left_out() -> None:
    assert tallied([[]]) == {"loss": 0.0}


tokens = st.lists(st.floats(-10, 10), min_size=1, max_size=5)


@settings(max_examples=30)
@given(st.lists(tokens, min_size=1, max_size=4))
def test_updates_merge_into_the_statistics_of_all_their_tokens(parts: list[list[float]]) -> None:
    updates = [tallied([part]) | {"tokens": float(len(part)), "skipped_steps": 0.0} for part in parts]
    merged = merge_updates(updates)
    everything = np.concatenate([np.array(part) for part in parts])
    assert merged["kl"] == pytest.approx(everything.mean(), abs=1e-9)
    assert merged["gap_max"] == everything.max()
    assert merged["gap_std"] == pytest.approx(everything.std(), abs=1e-6)
    assert merged["loss"] == pytest.approx(np.mean([sum(part) for part in parts]), abs=1e-9)
    assert merged["tokens"] == len(everything)


def test_a_skipped_update_is_counted_and_adds_no_number() -> None:
    taken = {"tokens": 4.0, "skipped_steps": 0.0, "kl": 2.0, "lr": 0.1}
    skipped = {"tokens": 6.0, "skipped_steps": 1.0}
    assert merge_updates([taken, skipped]) == {"tokens": 10.0, "skipped_steps": 1.0, "kl": 2.0, "lr": 0.1}


def test_the_last_learning_rate_counts() -> None:
    updates = [{"tokens": 1.0, "skipped_steps": 0.0, "lr": lr} for lr in (0.3, 0.2)]
    assert merge_updates(updates)["lr"] == 0.2


def test_an_update_without_a_token_does_not_move_the_means() -> None:
    empty = {"tokens": 0.0, "skipped_steps": 0.0, "grad_norm": 0.0}
    merged = merge_updates([{"tokens": 2.0, "skipped_steps": 0.0, "grad_norm": 1.0, "kl": 3.0}, empty])
    assert (merged["kl"], merged["grad_norm"]) == (3.0, 0.5)


def test_names_get_a_prefix_unless_they_have_one() -> None:
    assert prefixed({"a": 1.0, "b/c": 2.0}, "actor") == {"actor/a": 1.0, "b/c": 2.0}
    assert summary("x", np.array([1.0, 3.0])) == {"x/mean": 2.0, "x/max": 3.0, "x/min": 1.0}
    assert summary("x", np.zeros(0)) == {}
