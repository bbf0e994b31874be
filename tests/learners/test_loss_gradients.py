"""The gradient of every policy loss, and what masked content and zero advantages do to it."""

from typing import Any

import pytest
import torch
from roll_learners import POLICY_LOSSES, PolicyLoss, Turns, response_tokens, value_loss

PARAMETERS = {
    "clip_low": 0.2,
    "clip_high": 0.3,
    "tau_positive": 1.0,
    "tau_negative": 1.05,
    "tau": 0.3,
    "mismatch_high": 1.2,
}
THROUGH_THE_RATIO = {"clipped_surrogate", "gspo", "turn_surrogate", "gmpo", "sapo", "importance_gradient"}
WEIGHTED = set(POLICY_LOSSES.names()) - THROUGH_THE_RATIO - {"kimi"}
"""The weight of log pi is a constant, which a difference quotient does not know."""

MASK = torch.tensor([[0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 0, 0]])


def columns(seed: int = 0) -> dict[str, torch.Tensor]:
    """[2, 6] each; ratios on both sides of every bound."""
    generator = torch.Generator().manual_seed(seed)

    def rows(scale: float) -> torch.Tensor:
        return scale * torch.randn(2, 6, generator=generator, dtype=torch.float64)

    old = -rows(1.0).abs() - 0.1
    return {
        "logprobs": old + rows(0.4),
        "old_logprobs": old,
        "behavior_logprobs": old + rows(0.3),
        "advantages": torch.tensor([[1.0], [-0.7]], dtype=torch.float64).expand(2, 6).clone(),
    }


def loss_of(name: str, given: dict[str, torch.Tensor]) -> PolicyLoss:
    segments, *flat = response_tokens(MASK, *given.values())
    inputs = dict(zip(given, flat, strict=True))
    loss: PolicyLoss = POLICY_LOSSES.bind(name, PARAMETERS)(
        segments=segments, turns=Turns.of_mask(MASK), **inputs
    )
    return loss


def gradient(name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    leaf = given["logprobs"].clone().requires_grad_()
    loss_of(name, given | {"logprobs": leaf}).losses.sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_the_sets_are_of_losses_that_exist() -> None:
    assert set(POLICY_LOSSES.names()) >= THROUGH_THE_RATIO | {"kimi"}
    assert len(WEIGHTED) >= 7


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(THROUGH_THE_RATIO | {"kimi"}))
def test_the_gradient_is_that_of_the_value(name: str, seed: int) -> None:
    given = columns(seed)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return loss_of(name, given | {"logprobs": x}).losses

    assert torch.autograd.gradcheck(losses, (given["logprobs"].requires_grad_(),))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(WEIGHTED))
def test_the_gradient_of_a_weighted_loss_is_its_weight_times_the_advantage(name: str, seed: int) -> None:
    given = columns(seed)
    losses = loss_of(name, given).losses
    chosen = MASK.bool()
    torch.testing.assert_close(
        gradient(name, given)[chosen], losses / given["logprobs"][chosen], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("content", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_masked_content_reaches_neither_value_nor_gradient(name: str, content: float) -> None:
    given = columns()
    dirty = {key: rows.masked_fill(~MASK.bool(), content) for key, rows in given.items()}
    assert torch.equal(loss_of(name, dirty).losses, loss_of(name, given).losses)
    clean = gradient(name, given)
    assert torch.equal(gradient(name, dirty), clean)
    assert not clean[~MASK.bool()].any()
    assert clean[MASK.bool()].any()


@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_losses_that_claim_to_vanish_at_zero_advantage_do_and_no_other(name: str) -> None:
    given = columns()
    given["advantages"].zero_()
    vanishes = not loss_of(name, given).losses.any() and not gradient(name, given).any()
    assert vanishes is ("vanishes_at_zero_advantage" in POLICY_LOSSES.part(name).traits)


@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_extreme_ratios_stay_finite_in_float32(name: str) -> None:
    given: dict[str, Any] = {key: rows.float() for key, rows in columns().items()}
    given["logprobs"][0, 1], given["logprobs"][1, 1] = 200.0, -900.0
    assert loss_of(name, given).losses.isfinite().all()
    assert gradient(name, given).isfinite().all()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_gradient_of_the_value_loss_is_right(clip: float | None) -> None:
    values = torch.tensor([0.9, 0.1, 1.5, -0.3], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([0.5, 0.2, 1.0, 0.4], dtype=torch.float64)
    returns = torch.tensor([1.0, 0.0, 0.0, 0.3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, old, returns, clip=clip), (values,))
    # By hand for the last: V = -0.3 is held at 0.2, so the greater square is the free one, 0.36.
    assert value_loss(values, old, returns, clip=0.2)[3].item() == pytest.approx(0.18)
    # And the second: V = 0.1 is inside the clip.
    assert value_loss(values, old, returns, clip=0.2)[1].item() == pytest.approx(0.005)
