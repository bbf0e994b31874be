"""Draws one token a row from logits, each row with its own parameters, in a handful of tensor operations."""

from dataclasses import dataclass

import numpy as np
import torch

from roll_rollout.sampling import SamplingParams
from roll_rollout.transformers_engine.token_filters import FilterPlan, keep_likely, plan_filters

_CHUNK = 512
"""Tokens that are summed together, in a large vocabulary, before the cumulative distribution is formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """Parameters of B rows as tensors, made once for as long as the rows stay the same.

    Attributes:
        temperature: float32[B, 1] with 1 for greedy rows; None if all are 1.
        greedy: bool[B, 1]; None if no row is greedy.
        filters: Of the rows with top-k, top-p or min-p on; None if there are none.
    """

    temperature: torch.Tensor | None
    greedy: torch.Tensor | None
    filters: FilterPlan | None


def plan_sampling(rows: list[SamplingParams], *, device: torch.device) -> SamplingPlan:
    """Returns the plan for rows with these parameters, in order."""
    temperatures = [row.temperature or 1.0 for row in rows]
    greedy = [row.temperature == 0.0 for row in rows]
    return SamplingPlan(
        temperature=_column(temperatures, device) if set(temperatures) != {1.0} else None,
        greedy=_column(greedy, device) if any(greedy) else None,
        filters=plan_filters(rows, device=device),
    )


def sample(logits: torch.Tensor, uniforms: np.ndarray, plan: SamplingPlan) -> tuple[np.ndarray, np.ndarray]:
    """Draws one token a row by inverting the cumulative distribution at a uniform number.

    Args:
        logits: float32 or float64 [B, V].
        uniforms: float64[B] in [0, 1).
        plan: Parameters of the B rows.

    Returns:
        Token ids, int64[B], and float32[B] log-probs of those tokens in the distribution they were drawn
        from: log-softmax of logits/temperature, over the kept set where a filter is on. A log-prob that
        is not finite says that the row's logits are not.
    """
    scores = logits if plan.temperature is None else logits / plan.temperature
    if plan.filters is not None:
        scores = keep_likely(scores, plan.filters)
    best = scores.amax(dim=-1, keepdim=True)
    weights = (scores - best).exp_()
    tokens, total = _invert(weights, torch.from_numpy(uniforms).to(logits.device).unsqueeze(1))
    if plan.greedy is not None:
        tokens = torch.where(plan.greedy, scores.argmax(dim=-1, keepdim=True), tokens)
    logprobs = (scores.gather(1, tokens) - best).double() - total.log()
    # One transfer for both: float64 holds every token id exactly.
    drawn = torch.cat((tokens.double(), logprobs), dim=1).cpu().numpy()
    return drawn[:, 0].astype(np.int64), drawn[:, 1].astype(np.float32)


def _column(values: list[float] | list[bool], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device).unsqueeze(1)


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the token at a fraction of the summed weights.

    Args:
        weights: [B, V], not normalised, 0 or more.
        uniforms: float64[B, 1] in [0, 1).

    Returns:
        int64[B, 1] tokens with positive weight, and float64[B, 1] sums of all weights.
    """
    vocabulary = weights.shape[1]
    if vocabulary > _CHUNK:
        return _invert_by_chunks(weights, uniforms)
    # In float64 the product stays under the last sum for every uniform under 1, so that the search ends
    # at a token with weight. The clamp is for weights that are not finite.
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    return torch.searchsorted(cumulative, uniforms * total, right=True).clamp_(max=vocabulary - 1), total


def _invert_by_chunks(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the chunk of the token first and then its place there: only one chunk a row is summed up."""
    vocabulary = weights.shape[1]
    even = vocabulary - vocabulary % _CHUNK
    sums = weights[:, :even].view(len(weights), -1, _CHUNK).sum(dim=-1)
    if even < vocabulary:
        sums = torch.cat((sums, weights[:, even:].sum(dim=-1, keepdim=True)), dim=1)
    ends = sums.double().cumsum(dim=-1)
    total = ends[:, -1:]
    targets = uniforms * total
    chunk = torch.searchsorted(ends, targets, right=True).clamp_(max=sums.shape[1] - 1)
    start = torch.where(chunk > 0, ends.gather(1, (chunk - 1).clamp_(min=0)), 0.0)
    columns = chunk * _CHUNK + torch.arange(_CHUNK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=vocabulary - 1)).double()
    cumulative = inside.mul_(columns < vocabulary).cumsum(dim=-1)
    # Two ways of summing a chunk differ in the last digits; stay below its end, on a token with weight.
    end = cumulative[:, -1:]
    place = torch.minimum(targets - start, torch.nextafter(end, torch.zeros_like(end)))
    tokens = chunk * _CHUNK + torch.searchsorted(cumulative, place, right=True)
    return tokens.clamp_(max=vocabulary - 1), total
