"""Objectives: terms add up, and say what they lack."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from roll_learners import (
    LearnerError,
    PolicyObjective,
    Segments,
    SequenceObjective,
    SupervisedObjective,
    TokenBatch,
    Totals,
    make_algorithm,
)

SEGMENTS = Segments.of_lengths(torch.tensor([1, 3]))


def batch(**columns: torch.Tensor) -> TokenBatch:
    return TokenBatch(
        logprobs=torch.tensor([-1.0, -2.0, -0.5, -0.1], dtype=torch.float64, requires_grad=True),
        entropy=torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64),
        segments=SEGMENTS,
        totals=Totals(tokens=4, sequences=2),
        columns=columns,
    )


def ones(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_at_the_weights_of_the_step_the_ratio_is_one() -> None:
    terms = PolicyObjective(make_algorithm("dapo")).terms(batch(advantages=ones(1, -1, -1, 2)))
    assert terms.loss.item() == pytest.approx(-(1 - 1 - 1 + 2) / 4)
    assert terms.metrics["ppo_kl"].values.tolist() == [0, 0, 0, 0]
    assert terms.metrics["pg_clipfrac"].values.tolist() == [0, 0, 0, 0]
    assert terms.metrics["ratio"].values.tolist() == [1, 1, 1, 1]


def test_kl_and_entropy_are_summed_like_the_policy_loss() -> None:
    algorithm = make_algorithm(
        "dapo", kl={"placement": "loss", "estimator": "k2", "coef": 0.5}, entropy_coef=0.1
    )
    tokens = batch(advantages=ones(0, 0, 0, 0), ref_logprobs=ones(-1, -2, -0.5, -2.1))
    terms = PolicyObjective(algorithm).terms(tokens)
    assert PolicyObjective(algorithm).entropy == "gradient"
    assert terms.loss.item() == pytest.approx(0.5 * (2.0**2 / 2 / 4) - 0.1 * 3.0)
    assert terms.metrics["kl_loss"].values.item() == pytest.approx(0.5)
    assert terms.metrics["ref_kl"].values.tolist() == pytest.approx([0, 0, 0, 2])


def test_the_gap_to_the_engine_is_measured_at_the_old_weights() -> None:
    old = ones(0.5, 0.5, 0.5, 0.5).log()
    behavior = ones(0.4, 0.5, 0.6, 1.0).log()
    behavior[3] = math.nan
    terms = PolicyObjective(make_algorithm("dapo")).terms(
        batch(advantages=ones(1, 1, 1, 1), old_logprobs=old, behavior_logprobs=behavior)
    )
    assert terms.metrics["training/rollout_probs_diff"].values.tolist() == pytest.approx([0.1, 0, 0.1])


@pytest.mark.parametrize(
    ("overrides", "columns", "message"),
    [
        ({}, {}, "'clipped_surrogate' needs advantages"),
        (
            {"kl": {"placement": "loss", "coef": 1.0}},
            {"advantages": ones(1, 1, 1, 1)},
            "'k3' needs ref_logprobs",
        ),
    ],
)
def test_an_absent_column_is_named(overrides: Any, columns: Any, message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        PolicyObjective(make_algorithm("dapo", **overrides)).terms(batch(**columns))


def test_supervision_is_the_token_mean_of_the_negative_log_likelihood() -> None:
    terms = SupervisedObjective().terms(batch())
    assert terms.loss.item() == pytest.approx(3.6 / 4)
    assert terms.metrics["nll"].values.item() == pytest.approx(3.6 / 4)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    "objective",
    [SupervisedObjective(), SupervisedObjective("seq_mean_token_mean"), SequenceObjective()],
    ids=["token_mean", "seq_mean_token_mean", "sequences"],
)
def test_slopes_are_the_derivatives_of_the_loss(objective: Any, ranks: int) -> None:
    tokens = batch(share=ones(0.5, 0.2, 0.2, 0.2), slope=ones(-1, 3, 3, 3))
    totals = Totals(tokens=9, sequences=3, ranks=ranks)
    tokens = dataclasses.replace(tokens, totals=totals)
    (expected,) = torch.autograd.grad(objective.terms(tokens).loss, tokens.logprobs)
    slopes = objective.slopes(tokens.logprobs.detach()[:0], tokens.segments, totals, tokens.columns)
    torch.testing.assert_close(slopes, expected, rtol=0, atol=1e-15)
    assert not slopes.requires_grad
