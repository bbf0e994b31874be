"""The critics' part of a step: which samples each learns from, its updates, and how good its values are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from roll_learners.advantages.ensemble import deal_responses, disagreement, explained_variance
from roll_learners.batch import Column, scatter_tokens, total_counts
from roll_learners.critic import Critic
from roll_learners.critic_rule import CriticRule
from roll_learners.metrics import merge_updates, prefixed
from roll_learners.sample import Sample
from roll_learners.steps.columns import flat
from roll_learners.update import SkippedUpdate
from roll_learners.value_objective import ValueObjective


def critic_step(
    critics: Sequence[Critic],
    samples: Sequence[Sample],
    returns: Tensor,
    rule: CriticRule,
    *,
    values: Tensor | None,
    mini_batches: int,
    epochs: int,
    rng: np.random.Generator,
) -> tuple[dict[str, float], tuple[SkippedUpdate, ...]]:
    """Updates each critic on the responses that are dealt to it.

    Args:
        critics: M of them.
        samples: S samples with N trained tokens.
        returns: [N], the targets.
        rule: How they learn.
        values: [M, N] before the updates; needed for a clip.
        mini_batches: Optimizer steps an epoch; fewer if a critic has fewer samples.
        epochs: Passes over the samples.
        rng: Deals the samples to mini-batches.

    Returns:
        critic/vf_loss, critic/grad_norm, critic/lr and so on, of several critics their mean and, under
        critic_0/ and on, each one's; and the updates that were skipped, by the positions in `samples`.
    """
    owners = deal_responses(torch.tensor([sample.group for sample in samples]), len(critics)).numpy()
    targets = scatter_tokens(returns.numpy(), samples)
    objective = ValueObjective(clip=rule.value_clip, coef=rule.coef)
    per_critic, skipped = [], []
    for m, critic in enumerate(critics):
        own = np.flatnonzero(owners == m)
        old = None if values is None else scatter_tokens(values[m].numpy(), samples)
        updates = []
        for dealt in (d for _ in range(epochs) for d in np.array_split(rng.permutation(own), mini_batches)):
            if not len(dealt):
                continue
            columns: dict[str, Column] = {"returns": [targets[i] for i in dealt]}
            if old is not None and rule.value_clip is not None:
                columns["old_values"] = [old[i] for i in dealt]
            chosen = [samples[i] for i in dealt]
            result = critic.update(
                chosen, objective, totals=total_counts(chosen), indices=dealt.tolist(), **columns
            )
            updates.append(result.metrics)
            skipped += [] if result.skipped is None else [result.skipped]
        if updates:
            per_critic.append(merge_updates(updates))
    return _metrics(per_critic, len(critics)), tuple(skipped)


def critic_values(critics: Sequence[Critic], samples: Sequence[Sample]) -> Tensor:
    """[M, N], the values of all critics before each trained token of all samples."""
    return torch.stack([flat(critic.values(samples), samples) for critic in critics])


def value_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    """critic/values/*, critic/returns/mean, critic/explained_variance and, of several, critic/disagreement/*.

    Args:
        values: [M, N].
        returns: [N].
    """
    mean = values.mean(0)
    metrics = {
        "critic/values/mean": mean.mean().item(),
        "critic/values/max": mean.max().item(),
        "critic/values/min": mean.min().item(),
        "critic/returns/mean": returns.mean().item(),
    }
    explained = explained_variance(mean, returns)
    if explained.isfinite():
        metrics["critic/explained_variance"] = explained.item()
    if len(values) > 1:
        sigma = disagreement(values)
        metrics["critic/disagreement/mean"] = sigma.mean().item()
        metrics["critic/disagreement/max"] = sigma.max().item()
    return metrics


def _metrics(per_critic: list[dict[str, float]], critics: int) -> dict[str, float]:
    if not per_critic:
        return {}
    shared = set.intersection(*(set(metrics) for metrics in per_critic))
    mean = {name: float(np.mean([metrics[name] for metrics in per_critic])) for name in sorted(shared)}
    metrics = prefixed(mean, "critic")
    if critics > 1:
        for m, own in enumerate(per_critic):
            metrics |= prefixed(own, f"critic_{m}")
    return metrics
