"""The critics' part of a step: which samples each learns from, its updates, and how good its values are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.advantages.ensemble import deal_responses, disagreement, explained_variance
from roll_learners.batch import Column, scatter_tokens, total_counts
from roll_learners.critic import Critic
from roll_learners.critic_rule import CriticRule
from roll_learners.metrics import merge_updates, prefixed
from roll_learners.sample import Sample
from roll_learners.steps.columns import TokenColumn, flat
from roll_learners.update import SkippedUpdate, UpdateResult
from roll_learners.value_objective import ValueObjective


class CriticUpdates:
    """The updates of all critics in one step, which may be under way.

    Args:
        runs: The updates of each critic.
        apart: Whether they run beside each other, and beside the caller, on threads that wait for other
            processes; else they are done when this returns.
    """

    def __init__(self, runs: Sequence[Callable[[], list[UpdateResult]]], *, apart: bool) -> None:
        self._pool = ThreadPoolExecutor(len(runs), thread_name_prefix="critics") if apart else None
        self._done = [] if self._pool is not None else [run() for run in runs]
        self._running = [] if self._pool is None else [self._pool.submit(run) for run in runs]

    def result(self) -> tuple[dict[str, float], tuple[SkippedUpdate, ...]]:
        """Metrics and skipped updates as of `critic_step`; waits until there are no more updates.

        Raises:
            Exception: What a critic raised, the first one's first.
        """
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._done, self._running = [run.result() for run in self._running], []
            self._pool = None
        per_critic = [merge_updates([each.metrics for each in done]) for done in self._done if done]
        skipped = [each.skipped for done in self._done for each in done if each.skipped is not None]
        return _metrics(per_critic, len(self._done)), tuple(skipped)


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
    return start_critic_step(
        critics, samples, returns, rule, values=values, mini_batches=mini_batches, epochs=epochs, rng=rng
    ).result()


def start_critic_step(
    critics: Sequence[Critic],
    samples: Sequence[Sample],
    returns: Tensor,
    rule: CriticRule,
    *,
    values: Tensor | None,
    mini_batches: int,
    epochs: int,
    rng: np.random.Generator,
    apart: bool = False,
) -> CriticUpdates:
    """As `critic_step`; with `apart` critics of other processes learn beside each other and the caller."""
    owners = deal_responses(torch.tensor([sample.group for sample in samples]), len(critics)).numpy()
    targets = scatter_tokens(returns.numpy(), samples)
    objective = ValueObjective(clip=rule.value_clip, coef=rule.coef)
    runs: list[Callable[[], list[UpdateResult]]] = []
    for m, critic in enumerate(critics):
        own = np.flatnonzero(owners == m)
        old = None if values is None else scatter_tokens(values[m].numpy(), samples)
        deals = [d for _ in range(epochs) for d in np.array_split(rng.permutation(own), mini_batches)]
        given = None if rule.value_clip is None else old
        runs.append(partial(_learn, critic, samples, objective, targets, given, deals))
    return CriticUpdates(runs, apart=apart)


def _learn(
    critic: Critic,
    samples: Sequence[Sample],
    objective: ValueObjective,
    targets: TokenColumn,
    old: TokenColumn | None,
    deals: Sequence[npt.NDArray[np.int64]],
) -> list[UpdateResult]:
    """One critic's updates, a mini-batch each."""
    results = []
    for dealt in deals:
        if not len(dealt):
            continue
        columns: dict[str, Column] = {"returns": [targets[i] for i in dealt]}
        if old is not None:
            columns["old_values"] = [old[i] for i in dealt]
        chosen = [samples[i] for i in dealt]
        results.append(
            critic.update(chosen, objective, totals=total_counts(chosen), indices=dealt.tolist(), **columns)
        )
    return results


def critic_values(critics: Sequence[Critic], samples: Sequence[Sample], *, apart: bool = False) -> Tensor:
    """[M, N], the values of all critics before each trained token of all samples.

    Args:
        critics: M of them.
        samples: S samples with N trained tokens.
        apart: Whether to ask all at a time, because they are in other processes.
    """
    if not apart:
        return torch.stack([flat(critic.values(samples), samples) for critic in critics])
    with ThreadPoolExecutor(len(critics), thread_name_prefix="critics") as pool:
        columns = list(pool.map(lambda critic: critic.values(samples), critics))
    return torch.stack([flat(column, samples) for column in columns])


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
