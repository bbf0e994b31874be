"""Entropy of next-token distributions."""

import math

import pytest
import torch
from roll_learners import entropy


def test_by_hand() -> None:
    logits = torch.tensor(
        [[0.0, 0.0, 0.0, 0.0], [math.log(3), 0.0, -math.inf, -math.inf]], dtype=torch.float64
    )
    expected = [math.log(4), -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))]
    assert entropy(logits).tolist() == pytest.approx(expected)


def test_gradients_are_right() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(entropy, (logits.requires_grad_(),))


def test_a_forbidden_token_leaves_value_and_gradient_finite() -> None:
    logits = torch.tensor([[1.0, -math.inf, 2.0]], requires_grad=True)
    value = entropy(logits).sum()
    value.backward()
    assert value.item() == pytest.approx(entropy(torch.tensor([[1.0, 2.0]])).item())
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0
