"""Log-probs of tokens from logits, under the conventions that engine and learner must share."""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(
    logits: Tensor, tokens: Tensor, *, temperature: float = 1.0, kept: Tensor | None = None
) -> Tensor:
    """[N], log softmax(logits / temperature) at `tokens`.

    Args:
        logits: [N, V].
        tokens: int64[N].
        temperature: Above 0; divides the logits, not the log-prob.
        kept: bool[N, V], the tokens among which the engine sampled; the rest have probability 0.
    """
    scaled = logits / temperature
    if kept is not None:
        scaled = scaled.masked_fill(~kept, -torch.inf)
    return scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def kept_by_top_p(logits: Tensor, top_p: float) -> Tensor:
    """bool[N, V], the fewest most probable tokens whose probabilities sum to at least top_p.

    Args:
        logits: [N, V], already divided by the temperature.
        top_p: Above 0, at most 1.
    """
    probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    # A sum that reaches top_p up to rounding has reached it.
    keep = before < top_p - 8 * torch.finfo(logits.dtype).eps
    keep[..., 0] = True
    return torch.zeros_like(keep).scatter(-1, order, keep)
