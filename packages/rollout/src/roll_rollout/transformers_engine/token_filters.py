"""Top-k, top-p and min-p on logits, for rows of a batch that have any of them on. Called by the sampler."""

from dataclasses import dataclass

import torch

from roll_rollout.sampling import SamplingParams

_CANDIDATES = 1024
"""Tokens a row that are put in order at first: sorting a large vocabulary costs as much as a small model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan:
    """Filters of F rows as tensors.

    Attributes:
        rows: int64[F], their places in the batch.
        top_k: int64[F, 1]; larger than any vocabulary where it is off.
        top_p: float64[F, 1]; infinite where it is off.
        log_min_p: float64[F, 1]; minus infinity where it is off.
    """

    rows: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor


def plan_filters(rows: list[SamplingParams], *, device: torch.device) -> FilterPlan | None:
    """Returns the plan for the rows that filter; None if no row does."""
    filtered = [index for index, row in enumerate(rows) if not row.full_distribution]
    if not filtered:
        return None
    off = torch.iinfo(torch.int64).max
    top_k = [rows[index].top_k or off for index in filtered]
    top_p = [rows[index].top_p if rows[index].top_p < 1.0 else float("inf") for index in filtered]
    min_p = torch.tensor([rows[index].min_p for index in filtered], dtype=torch.float64)
    return FilterPlan(
        rows=torch.tensor(filtered, device=device),
        top_k=torch.tensor(top_k, device=device).unsqueeze(1),
        top_p=torch.tensor(top_p, dtype=torch.float64, device=device).unsqueeze(1),
        log_min_p=min_p.log().to(device).unsqueeze(1),
    )


def keep_likely(scores: torch.Tensor, plan: FilterPlan) -> torch.Tensor:
    """Returns scores [B, V] with minus infinity where a filter of the row drops the token.

    What remains is everything from the least likely kept token up, so tokens that tie with it stay too.
    """
    filtered = scores[plan.rows]
    vocabulary = scores.shape[1]
    least, complete = _least_kept(filtered, plan, min(_CANDIDATES, vocabulary))
    if not complete:
        least, _ = _least_kept(filtered, plan, vocabulary)
    return scores.index_copy(0, plan.rows, filtered.masked_fill(filtered < least, float("-inf")))


def _least_kept(scores: torch.Tensor, plan: FilterPlan, width: int) -> tuple[torch.Tensor, bool]:
    """Returns the lowest kept score [F, 1] among the `width` most likely tokens, and whether it is there."""
    vocabulary = scores.shape[1]
    ordered = scores.topk(width, dim=-1).values
    best = ordered[:, :1]
    within = torch.arange(width, device=scores.device) < plan.top_k
    weights = (ordered - best).double().exp() * within
    everything = (scores - best).exp().sum(dim=-1, keepdim=True, dtype=torch.float64)
    whole = torch.where(plan.top_k < vocabulary, weights.sum(dim=-1, keepdim=True), everything)
    # The token that crosses top_p is kept: what counts is the weight of those before it.
    kept = within & (weights.cumsum(dim=-1) - weights < plan.top_p * whole)
    kept[:, 0] = True
    count = kept.sum(dim=-1, keepdim=True)
    unlimited = (plan.top_k >= vocabulary) & plan.top_p.isinf()
    least = ordered.gather(1, count - 1).masked_fill(unlimited, float("-inf"))
    least = torch.maximum(least, (best + plan.log_min_p).to(scores.dtype))
    known = (plan.top_k <= width) | unlimited | ((plan.top_k >= vocabulary) & (count < width))
    return least, width == vocabulary or bool(known.all())
