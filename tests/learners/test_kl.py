"""KL estimators."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import KL_ESTIMATORS, full_kl, k1, k2, k3, k3_importance


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand() -> None:
    logprobs, reference = doubles(-1, -1), doubles(-1, -2)
    assert k1(logprobs, reference).tolist() == [0, 1]
    assert k2(logprobs, reference).tolist() == [0, 0.5]
    assert k3(logprobs, reference).tolist() == pytest.approx([0, math.exp(-1)])


@pytest.mark.parametrize("name", sorted(set(KL_ESTIMATORS.names()) - {"full"}))
def test_gradients_are_right(name: str) -> None:
    estimate = KL_ESTIMATORS.bind(name, {})
    logprobs = doubles(-0.5, -1.2, -3.0, -0.01).requires_grad_()
    reference, old = doubles(-0.6, -1.0, -0.9, -2.0), doubles(-0.4, -1.3, -2.9, -0.02)

    def estimated(x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = estimate(logprobs=x, ref_logprobs=reference, old_logprobs=old)
        return value

    assert torch.autograd.gradcheck(estimated, (logprobs,))


def test_the_full_divergence_is_what_the_estimators_estimate() -> None:
    logits = doubles(0.2, 1.0, -0.5).requires_grad_()
    reference = doubles(0.0, 0.3, 0.1)
    exact = full_kl(logits[None], reference[None])
    policy, ref = logits.log_softmax(-1), reference.log_softmax(-1)
    assert exact.item() == pytest.approx((policy.exp() * k1(policy, ref)).sum().item())
    assert torch.autograd.gradcheck(lambda x: full_kl(x[None], reference[None]), (logits,))


def test_k3_weighed_by_the_ratio_by_hand() -> None:
    value = k3_importance(doubles(math.log(0.5)), doubles(math.log(0.25)), doubles(math.log(0.25)))
    assert value.item() == pytest.approx(2.0 * (0.5 + math.log(2) - 1))


@settings(max_examples=30)
@given(st.floats(-1000, 0), st.floats(-1000, 0))
def test_k3_is_finite_and_not_negative_and_so_is_its_gradient(logprob: float, reference: float) -> None:
    given = torch.tensor([logprob], dtype=torch.float32, requires_grad=True)
    value = k3(given, torch.tensor([reference], dtype=torch.float32))
    value.sum().backward()
    assert 0 <= value.item() <= 10
    assert given.grad is not None
    assert given.grad.isfinite().all()
