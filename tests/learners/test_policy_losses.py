"""Policy losses: by hand, by gradient check, and at the edges."""

import math

import pytest
import torch
from roll_learners import POLICY_LOSSES, Segments, cispo, clipped_surrogate, gspo, sequence_ratio

LN2 = math.log(2)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_surrogate_by_hand() -> None:
    # ratios 2, 1/2, 2, 1/2 with advantages +, +, -, -
    loss = clipped_surrogate(
        doubles(LN2, -LN2, LN2, -LN2),
        doubles(0, 0, 0, 0),
        doubles(1, 1, -1, -1),
        clip_low=0.2,
        clip_high=0.28,
    )
    assert loss.losses.tolist() == pytest.approx([-1.28, -0.5, 2.0, 0.8])
    assert loss.clipped.tolist() == [True, False, False, True]
    assert loss.ratio.tolist() == pytest.approx([2, 0.5, 2, 0.5])


def test_dual_clip_bounds_the_loss_of_a_negative_advantage_alone() -> None:
    arguments = (doubles(LN2 * 3, LN2 * 3), doubles(0, 0), doubles(-1, 1))
    loss = clipped_surrogate(*arguments, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert loss.losses.tolist() == pytest.approx([3.0, -1.2])


def test_cispo_by_hand_weighs_the_logprob_and_lets_no_gradient_through_the_ratio() -> None:
    logprobs = doubles(LN2 - 3, -LN2 - 3).requires_grad_()
    loss = cispo(logprobs, doubles(-3, -3), doubles(1, -1), clip_low=1.0, clip_high=0.5)
    assert loss.losses.tolist() == pytest.approx([-1.5 * (LN2 - 3), 0.5 * (-LN2 - 3)])
    loss.losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.5, 0.5])


def test_gspo_by_hand_gives_all_tokens_of_a_sequence_its_geometric_ratio() -> None:
    segments = Segments.of_lengths(torch.tensor([2, 1]))
    loss = gspo(
        doubles(LN2 * 2, 0, 0), doubles(0, 0, 0), doubles(1, 1, 3), segments, clip_low=0.1, clip_high=0.5
    )
    assert loss.losses.tolist() == pytest.approx([-1.5, -1.5, -3.0])
    assert sequence_ratio(doubles(0.1, 0.3, 7.0), segments).tolist() == pytest.approx(
        [math.exp(0.2), math.exp(7)]
    )


@pytest.mark.parametrize("name", ["clipped_surrogate", "gspo"])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_gradients_are_right(name: str, dual_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, old = -3 * torch.rand(2, 12, generator=generator, dtype=torch.float64)
    advantages = torch.randn(12, generator=generator, dtype=torch.float64)
    segments = Segments.of_lengths(torch.tensor([5, 0, 3, 4]))
    loss = POLICY_LOSSES.bind(name, {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": dual_clip})
    assert torch.autograd.gradcheck(
        lambda x: loss(logprobs=x, old_logprobs=old, advantages=advantages, segments=segments).losses,
        (logprobs.requires_grad_(),),
    )


def test_the_gradient_of_cispo_is_that_of_a_weighted_likelihood() -> None:
    old, advantages = doubles(-1, -2, -0.5), doubles(1, -1, 0.3)
    logprobs = doubles(-0.5, -2.5, -0.9)
    weight = cispo(logprobs, old, advantages, clip_low=1.0, clip_high=0.28).ratio.clamp(0, 1.28)
    given = logprobs.clone().requires_grad_()
    cispo(given, old, advantages, clip_low=1.0, clip_high=0.28).losses.sum().backward()
    torch.testing.assert_close(given.grad, -weight * advantages)
    assert torch.autograd.gradcheck(lambda x: -weight * advantages * x, (logprobs.requires_grad_(),))


@pytest.mark.parametrize("name", ["clipped_surrogate", "gspo", "cispo"])
def test_a_ratio_beyond_float32_stays_finite_in_value_and_gradient(name: str) -> None:
    logprobs = torch.tensor([-0.1, -200.0], requires_grad=True)
    loss = POLICY_LOSSES.bind(name, {"clip_low": 0.2, "clip_high": 0.2})(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-200.0, -0.1]),
        advantages=torch.tensor([-1.0, 1.0]),
        segments=Segments.of_lengths(torch.tensor([1, 1])),
    )
    loss.losses.sum().backward()
    assert loss.losses.isfinite().all()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
