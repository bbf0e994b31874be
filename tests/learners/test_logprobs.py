"""Log-probs of tokens under the conventions of sampling."""

import math

import pytest
import torch
from roll_learners import kept_by_top_p, token_logprobs


def test_temperature_divides_the_logits() -> None:
    value = token_logprobs(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), temperature=0.5)
    assert value.item() == pytest.approx(-math.log1p(math.exp(-4)), abs=1e-6)


def test_the_kept_tokens_share_all_probability() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    kept = torch.tensor([[True, True, False]])
    assert token_logprobs(logits, torch.tensor([1]), kept=kept).item() == pytest.approx(math.log(0.3 / 0.8))
    assert token_logprobs(logits, torch.tensor([2]), kept=kept).item() == -math.inf


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.3, [False, True, False]),
        (0.5, [False, True, False]),
        (0.51, [False, True, True]),
        (0.8, [False, True, True]),
        (0.81, [True, True, True]),
        (1.0, [True, True, True]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, expected: list[bool], dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=dtype).log()
    assert kept_by_top_p(logits, top_p).tolist() == [expected]


def test_gradients_are_right() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(
        lambda x: token_logprobs(x, tokens, temperature=0.7), (logits.requires_grad_(),)
    )
