"""Log-probs in tiles have the values and gradients of whole logits."""

from itertools import product

import pytest
import torch
from roll_learners import LearnerError, entropy, linear_logprobs
from roll_learners.fused_head import LogitsRule

RULES = {
    "plain": LogitsRule(),
    "temperature": LogitsRule(temperature=0.7),
    "scaled": LogitsRule(scale=0.25, temperature=1.3),
    "capped": LogitsRule(cap=2.0, scale=0.5, temperature=0.8),
}


def inputs(dtype: torch.dtype = torch.float64, tokens: int = 7, words: int = 11) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, 5), (words, 5), (words,))
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [each.requires_grad_(True) for each in made]


def targets(tokens: int = 7, words: int = 11) -> torch.Tensor:
    return torch.arange(tokens) * 5 % words


def whole(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rule: LogitsRule
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.nn.functional.linear(states, weight, bias) * rule.scale
    if rule.cap is not None:
        logits = torch.tanh(logits / rule.cap) * rule.cap
    logits = logits / rule.temperature
    return logits.log_softmax(-1).gather(1, targets(len(states))[:, None])[:, 0], entropy(logits)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize(("size", "biased"), list(product([1, 30, 10**6], [False, True])))
def test_values_and_gradients_are_those_of_whole_logits(name: str, size: int, biased: bool) -> None:
    results = []
    for fused in (False, True):
        states, weight, bias = inputs()
        own = bias if biased else None
        if fused:
            logprobs, entropies = linear_logprobs(
                states, weight, targets(), bias=own, rule=RULES[name], entropy=True, logits_per_tile=size
            )
            assert entropies is not None
        else:
            logprobs, entropies = whole(states, weight, own, RULES[name])
        (logprobs.square().sum() + entropies.sin().sum()).backward()
        results.append([logprobs, entropies, states.grad, weight.grad, *([bias.grad] if biased else [])])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradients_are_those_of_finite_differences(name: str, with_entropy: bool) -> None:
    states, weight, bias = inputs(tokens=3, words=6)

    def scores(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = linear_logprobs(
            given[0],
            given[1],
            targets(3, 6),
            bias=given[2],
            rule=RULES[name],
            entropy=with_entropy,
            logits_per_tile=7,
        )
        return tuple(each for each in found if each is not None)

    assert torch.autograd.gradcheck(scores, (states, weight, bias))


def test_frozen_weights_get_no_gradient_and_states_the_same() -> None:
    states, weight, _ = inputs()
    logprobs, none = linear_logprobs(states, weight.detach(), targets(), logits_per_tile=20)
    assert none is None
    logprobs.sum().backward()
    assert weight.grad is None
    expected = inputs()
    whole(expected[0], expected[1], None, LogitsRule())[0].sum().backward()
    torch.testing.assert_close(states.grad, expected[0].grad, rtol=0, atol=1e-12)


def test_a_word_that_is_impossible_has_probability_zero_and_no_gradient_of_nan() -> None:
    states, weight, bias = inputs()
    with torch.no_grad():
        bias[4] = -torch.inf
    logprobs, entropies = linear_logprobs(
        states, weight, targets(), bias=bias, entropy=True, logits_per_tile=14
    )
    assert entropies is not None
    possible = targets() != 4
    assert torch.isfinite(logprobs[possible]).all()
    assert torch.isfinite(entropies).all()
    (logprobs[possible].sum() + entropies.sum()).backward()
    assert torch.isfinite(states.grad).all()


def test_half_precision_states_are_scored_in_float32() -> None:
    states, weight, _ = inputs(torch.bfloat16)
    logprobs, entropies = linear_logprobs(states, weight, targets(), entropy=True, logits_per_tile=14)
    assert logprobs.dtype == torch.float32
    assert entropies is not None
    (logprobs.sum() + entropies.sum()).backward()
    assert weight.grad.dtype == torch.bfloat16
    expected = [each.detach().double().requires_grad_(True) for each in inputs(torch.bfloat16)]
    reference, information = whole(expected[0], expected[1], None, LogitsRule())
    torch.testing.assert_close(logprobs.double(), reference, rtol=0.02, atol=0.05)
    (reference.sum() + information.sum()).backward()
    torch.testing.assert_close(weight.grad.double(), expected[1].grad, rtol=0.05, atol=0.1)


def test_no_token_at_all_gives_nothing() -> None:
    _, weight, _ = inputs()
    logprobs, _ = linear_logprobs(torch.zeros(0, 5, dtype=torch.float64), weight, targets(0))
    assert logprobs.shape == (0,)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("size", [1, 25, 10**6])
def test_known_slopes_give_the_gradient_in_the_forward(name: str, size: int) -> None:
    slopes = torch.linspace(-1, 2, 7, dtype=torch.float64)
    results = []
    for known in (False, True):
        states, weight, bias = inputs()
        if known:
            logprobs, _ = linear_logprobs(
                states, weight, targets(), bias=bias, rule=RULES[name], slopes=slopes, logits_per_tile=size
            )
        else:
            logprobs, _ = whole(states, weight, bias, RULES[name])
        # A loss that is scaled afterwards has slopes of the same direction.
        (3 * (logprobs * slopes).sum()).backward()
        results.append([logprobs, states.grad, weight.grad, bias.grad])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_slopes_of_another_loss_are_found_out() -> None:
    states, weight, _ = inputs()
    slopes = torch.ones(7, dtype=torch.float64)
    logprobs, _ = linear_logprobs(states, weight, targets(), slopes=slopes)
    with pytest.raises(LearnerError, match="other derivatives by log-probs than the slopes"):
        logprobs.square().sum().backward()
    with pytest.raises(LearnerError, match="slopes and entropy exclude"):
        linear_logprobs(states, weight, targets(), slopes=slopes, entropy=True)
