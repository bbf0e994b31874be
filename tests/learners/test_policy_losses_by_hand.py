"""Each further policy loss, computed by hand."""

import math

import pytest
import roll_learners as rl
import torch
from roll_learners import Segments, Turns

LN2 = math.log(2)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


TWO = Segments.of_lengths(torch.tensor([2, 1]))
ONE_TURN_EACH = Turns(tokens=TWO, sequences=Segments.of_lengths(torch.tensor([1, 1])))


def test_gmpo_clips_only_the_side_the_advantage_pushes_to() -> None:
    # A > 0: log-ratios 1 and -1 clip to 0.4 and -1, mean -0.3. A < 0: log-ratio -2 clips to -0.4.
    loss = rl.gmpo(doubles(1, -1, -2), doubles(0, 0, 0), doubles(1, 1, -1), TWO, clip_low=0.4, clip_high=0.4)
    assert loss.losses.tolist() == pytest.approx([-math.exp(-0.3)] * 2 + [math.exp(-0.4)])
    assert loss.clipped.tolist() == [True, False, True]


def test_sapo_has_slope_one_at_ratio_one() -> None:
    logprobs = doubles(0, LN2).requires_grad_()
    loss = rl.sapo(logprobs, doubles(0, 0), doubles(1, 1), tau_positive=1.0, tau_negative=2.0)
    assert loss.losses.tolist() == pytest.approx([-2.0, -4 / (1 + math.exp(-1))])
    loss.losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].item() == pytest.approx(-1)


def test_topr_truncates_the_ratio_of_the_response_only_where_the_advantage_is_not_positive() -> None:
    logprobs = doubles(-LN2, -2 * LN2, -1)
    loss = rl.topr(logprobs, doubles(0, -LN2, -3), doubles(-1, -1, 1), TWO)
    # The response's ratio is 1/2 x 1/2; the positive one has weight 1 though its ratio is e^2.
    assert loss.losses.tolist() == pytest.approx([-LN2 / 4, -2 * LN2 / 4, 1.0])
    up = rl.topr(doubles(-1, -1, -1), doubles(-2, -2, -2), doubles(-1, -1, -1), TWO)
    assert up.losses.tolist() == pytest.approx([-1, -1, -1])
    assert up.clipped.all()


def test_token_weights_by_hand() -> None:
    logprobs, old, advantages = doubles(-1 - LN2, -1 + LN2), doubles(-1, -1), doubles(-1, -1)
    assert rl.topr_token(logprobs, old, advantages).losses.tolist() == pytest.approx(
        [0.5 * (-1 - LN2), -1 + LN2]
    )
    assert rl.truncated_gradient(
        logprobs, old, -advantages, weight_high=1.5
    ).losses.tolist() == pytest.approx([0.5 * (1 + LN2), 1.5 * (1 - LN2)])
    assert rl.policy_gradient(logprobs, old, advantages).losses.tolist() == pytest.approx(logprobs.tolist())
    assert rl.importance_gradient(logprobs, old, advantages).losses.tolist() == pytest.approx([0.5, 2.0])
    kimi = rl.kimi(logprobs, old, advantages, tau=0.4).losses - logprobs
    assert kimi.tolist() == pytest.approx([0.2 * LN2**2] * 2)


def test_the_ratio_of_a_turn_is_its_geometric_mean() -> None:
    loss = rl.turn_surrogate(
        doubles(2 * LN2, 0, 0), doubles(0, 0, 0), doubles(1, 1, 1), ONE_TURN_EACH, clip_low=0.1, clip_high=0.5
    )
    assert loss.losses.tolist() == pytest.approx([-1.5, -1.5, -1.0])


def test_a_chunk_that_the_engine_found_improbable_is_masked_whole() -> None:
    # The first chunk's learner/engine ratio is sqrt(4 x 1) = 2 > 1.5; the second's is 1.
    old, behavior = doubles(-1, -1, -1), doubles(-1 - 2 * LN2, -1, -1)
    loss = rl.ipa_chunk(
        doubles(-1, -1, -1 - LN2), old, behavior, doubles(1, 1, -1), ONE_TURN_EACH, mismatch_high=1.5
    )
    assert loss.losses.tolist() == pytest.approx([0, 0, -0.5 * (1 + LN2)])
    unknown = doubles(math.nan, -1, -1)
    loss = rl.ipa_chunk(old, old, unknown, doubles(1, 1, 1), ONE_TURN_EACH, mismatch_high=1.5)
    assert loss.losses.tolist() == pytest.approx([1, 1, 1])
    by_token = rl.ipa_trajectory(old, old, behavior, doubles(1, 1, 1), TWO, mismatch_high=1.5)
    assert by_token.losses.tolist() == pytest.approx([0, 1, 1])


def test_preferences_by_hand() -> None:
    h = doubles(LN2 * 10)
    assert rl.dpo(h, beta=0.1).item() == pytest.approx(math.log(1.5))
    smoothed = rl.dpo(h, beta=0.1, label_smoothing=0.25).item()
    assert smoothed == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(3))
    robust = rl.robust_dpo(h, beta=0.1, label_smoothing=0.25).item()
    assert robust == pytest.approx((0.75 * math.log(1.5) - 0.25 * math.log(3)) / 0.5)
    assert rl.hinge(doubles(3, 30), beta=0.1).tolist() == pytest.approx([0.7, 0])
    assert rl.ipo(doubles(3), beta=0.1).item() == 4
    assert rl.simpo(doubles(1), beta=2.0, gamma=2 - LN2).item() == pytest.approx(math.log(1.5))
    assert rl.bradley_terry(doubles(LN2 + 1), doubles(1)).item() == pytest.approx(math.log(1.5))
    assert rl.bradley_terry(doubles(3), doubles(1), margin=2.0).item() == pytest.approx(LN2)
    # Odds of 1/2 and 1/5 are 1 and 1/4: log-odds ratio log 4.
    orpo = rl.orpo(doubles(-LN2), doubles(-math.log(5)), coef=0.5).item()
    assert orpo == pytest.approx(LN2 + 0.5 * math.log(1.25))
    assert rl.kto_baseline(doubles(-3, -2), doubles(-2, -2)).item() == 0
    kto = rl.kto(
        doubles(-1, -1),
        doubles(-1, -2),
        torch.tensor([True, False]),
        doubles(0)[0],
        beta=LN2,
        undesirable_weight=3.0,
    )
    assert kto.tolist() == pytest.approx([0.5, 2.0])


def test_gradients_of_preferences() -> None:
    h = doubles(1.5, -2.5, 0.3).requires_grad_()
    below = doubles(-0.8, -0.4, -2.0).requires_grad_()
    for loss in (
        lambda x: rl.dpo(x, beta=0.1, label_smoothing=0.1),
        lambda x: rl.robust_dpo(x, beta=0.1, label_smoothing=0.1),
        lambda x: rl.hinge(x, beta=0.3),
        lambda x: rl.ipo(x, beta=0.1),
        lambda x: rl.simpo(x, beta=2.0, gamma=1.0),
        lambda x: rl.kto(x, 0 * x, torch.tensor([True, False, True]), torch.tensor(0.1), beta=0.2),
        lambda x: rl.bradley_terry(x, x.flip(0), margin=0.5),
    ):
        assert torch.autograd.gradcheck(loss, (h,))
    assert torch.autograd.gradcheck(lambda c, r: rl.orpo(c, r, coef=0.5), (below, below.detach().flip(0)))


@pytest.mark.parametrize("divergence", rl.DIVERGENCES.names())
def test_divergences_are_zero_at_equality_and_have_the_right_gradient(divergence: str) -> None:
    bound = rl.DIVERGENCES.bind(divergence, {})
    student = torch.tensor([[1.0, 0.5, -0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[2.0, 0.0, -1.0, 1.5]], dtype=torch.float64).log_softmax(-1)
    assert bound(student=teacher, teacher=teacher).item() == pytest.approx(0, abs=1e-12)
    value = bound(student=student.log_softmax(-1), teacher=teacher)
    assert value.item() > 0
    # A token that the teacher never says, or that neither knows, leaves value and gradient finite.
    holes = teacher.masked_fill(torch.tensor([True, False, False, False]), -torch.inf)
    (slope,) = torch.autograd.grad(
        bound(student=student.log_softmax(-1), teacher=holes.log_softmax(-1)).sum(), student
    )
    assert slope.isfinite().all()
    if divergence != "adaptive_kl":  # its weights are constants, which a difference quotient does not know
        assert torch.autograd.gradcheck(
            lambda x: bound(student=x.log_softmax(-1), teacher=teacher), (student,)
        )


def test_divergences_by_hand() -> None:
    teacher, student = doubles(0.5, 0.5)[None].log(), doubles(0.25, 0.75)[None].log()
    assert rl.forward_kl(student, teacher).item() == pytest.approx(0.5 * LN2 + 0.5 * math.log(2 / 3))
    assert rl.reverse_kl(student, teacher).item() == pytest.approx(
        0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    )
    assert rl.generalised_js(student, teacher, beta=0.0).item() == rl.forward_kl(student, teacher).item()
    assert rl.generalised_js(student, teacher, beta=1.0).item() == rl.reverse_kl(student, teacher).item()
    skewed = 0.5 * math.log(0.5 / 0.3) + 0.5 * math.log(0.5 / 0.7)
    assert rl.skewed_forward_kl(student, teacher, skew=0.2).item() == pytest.approx(skewed)
