"""Draws one token a row from logits, each row with its own parameters, in a handful of tensor operations."""

from dataclasses import dataclass

import numpy as np
import torch

from roll_rollout.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """Parameters of B rows as tensors, made once for as long as the rows stay the same.

    Attributes:
        temperature: float32[B, 1] with 1 for greedy rows; None if all are 1.
        greedy: bool[B, 1]; None if no row is greedy.
        filtered: int64[F], rows with top-k, top-p or min-p on; None if there are none.
        top_k: int64[F, 1], at least 1.
        top_p: float64[F, 1].
        min_p: float64[F, 1].
    """

    temperature: torch.Tensor | None
    greedy: torch.Tensor | None
    filtered: torch.Tensor | None
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


def plan_sampling(rows: list[SamplingParams], *, device: torch.device) -> SamplingPlan:
    """Returns the plan for rows with these parameters, in order."""
    temperatures = [row.temperature or 1.0 for row in rows]
    greedy = [row.temperature == 0.0 for row in rows]
    filtered = [index for index, row in enumerate(rows) if not row.full_distribution]
    top_k = [rows[index].top_k or np.iinfo(np.int64).max for index in filtered]

    def column(values: list[float] | list[int] | list[bool], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

    return SamplingPlan(
        temperature=None if set(temperatures) == {1.0} else column(temperatures, torch.float32),
        greedy=column(greedy, torch.bool) if any(greedy) else None,
        filtered=torch.tensor(filtered, device=device) if filtered else None,
        top_k=column(top_k, torch.int64),
        top_p=column([rows[index].top_p for index in filtered], torch.float64),
        min_p=column([rows[index].min_p for index in filtered], torch.float64),
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
    if plan.filtered is not None:
        scores = _keep_likely(scores, plan.filtered, plan)
    logprobs = torch.log_softmax(scores, dim=-1)
    # In float64 the product below stays under the last cumulative value for every uniform under 1, so
    # that the search finds a token with positive probability.
    cumulative = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    targets = torch.from_numpy(uniforms).to(logits.device).unsqueeze(1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[1] - 1)
    if plan.greedy is not None:
        tokens = torch.where(plan.greedy, scores.argmax(dim=-1, keepdim=True), tokens)
    # One transfer for both: float64 holds every token id and every float32 exactly.
    drawn = torch.cat((tokens.double(), logprobs.gather(1, tokens).double()), dim=1).cpu().numpy()
    return drawn[:, 0].astype(np.int64), drawn[:, 1].astype(np.float32)


def _keep_likely(scores: torch.Tensor, rows: torch.Tensor, plan: SamplingPlan) -> torch.Tensor:
    """Returns scores with -inf, in the given rows, for tokens outside top-k, then top-p, then min-p."""
    ordered, order = scores[rows].sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1], device=scores.device)
    dropped = rank >= plan.top_k
    probs = torch.softmax(ordered.double().masked_fill(dropped, float("-inf")), dim=-1)
    # The token that crosses top_p is kept: what counts is the probability of those before it.
    dropped |= probs.cumsum(dim=-1) - probs >= plan.top_p
    dropped |= probs < plan.min_p * probs[:, :1]
    dropped[:, 0] = False
    kept = ordered.masked_fill(dropped, float("-inf"))
    return scores.index_copy(0, rows, torch.empty_like(kept).scatter_(1, order, kept))
