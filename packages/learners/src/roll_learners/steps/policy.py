"""One step of policy-gradient training: from scored samples to new weights.

`roll_launch`'s pipelines call it once a batch; so can a trainer of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from roll_learners.advantages.group import whiten, zero_spread
from roll_learners.advantages.returns import token_rewards
from roll_learners.algorithm import Algorithm
from roll_learners.batch import scatter_tokens, total_counts
from roll_learners.errors import LearnerError
from roll_learners.learner import Learner, LogprobSource
from roll_learners.metrics import merge_updates, prefixed, summary
from roll_learners.objective import PolicyObjective
from roll_learners.registry import ADVANTAGES, KL_ESTIMATORS
from roll_learners.sample import Sample, trainable
from roll_learners.segments import Segments
from roll_learners.update import StepResult, UpdateResult

TokenColumn = list[npt.NDArray[np.floating]]


def policy_step(
    learner: Learner,
    samples: Sequence[Sample],
    algorithm: Algorithm,
    *,
    mini_batches: int,
    epochs: int,
    rng: np.random.Generator,
    reference: LogprobSource | None = None,
) -> StepResult:
    """Updates the learner on these samples.

    Advantages are computed once, over all samples. Left out of statistics and loss are samples
    without a verdict (reward NaN), without a trained token and, if the algorithm says so, cut at
    their limit. Samples whose advantages are all 0 are counted in every denominator but not computed
    where they add exactly nothing to loss and gradient; token metrics are then means over the
    computed tokens, whose share of all is `actor/computed_share`.

    The old log-probs of the first mini-batch are those of its own forward pass where they are
    needed once; those of the others are computed before the first update.

    Args:
        learner: What is trained.
        samples: The training batch.
        algorithm: What is computed.
        mini_batches: Optimizer steps an epoch; samples are dealt to them at random, those of a group
            together as far as equal shares allow.
        epochs: Passes over the samples.
        rng: Deals the samples.
        reference: Needed if the algorithm has a KL term.

    Returns:
        Metrics by the names verl uses: actor/*, critic/rewards/*, critic/advantages/*,
        response_length/*, training/rollout_probs_diff_*, and frac_reward_zero_std; and the updates that
        were not finite, with the positions of their samples in `samples`.

    Raises:
        LearnerError: An argument out of range, no reference where one is needed, or samples that do
            not fit the learner.
    """
    if mini_batches < 1 or epochs < 1:
        raise LearnerError(
            f"policy_step: mini_batches {mini_batches}, epochs {epochs}: each must be at least 1"
        )
    if algorithm.needs_reference and reference is None:
        raise LearnerError(f"algorithm {algorithm.name!r} has a KL term: policy_step needs a reference")
    counted = np.flatnonzero(trainable(samples, mask_truncated=algorithm.mask_truncated))
    metrics = _sample_metrics(samples, counted)
    if not len(counted):
        return StepResult(metrics=metrics, updates=0)
    step = _Step(learner, [samples[i] for i in counted.tolist()], counted, algorithm, reference)
    advantages = step.advantages()
    metrics |= summary("critic/advantages", np.concatenate(advantages)[step.trained])
    deals = [np.array_split(_shuffled(step.samples, rng), mini_batches) for _ in range(epochs)]
    results = step.run(deals, advantages)
    metrics |= prefixed(step.metrics(results, epochs), "actor")
    skipped = tuple(result.skipped for result in results if result.skipped is not None)
    return StepResult(metrics=metrics, updates=len(results) - len(skipped), skipped=skipped)


def _shuffled(samples: Sequence[Sample], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A random order in which members of a group stay together, so that they share their prompt."""
    order = rng.permutation(len(samples))
    places: dict[int, int] = {}
    for i in order:
        places.setdefault(samples[i].group, len(places))
    return np.array(sorted(order, key=lambda i: places[samples[i].group]), np.int64)


def _sample_metrics(samples: Sequence[Sample], counted: npt.NDArray[np.int64]) -> dict[str, float]:
    rewards = np.array([sample.reward for sample in samples], np.float64)
    groups = torch.tensor([sample.group for sample in samples], dtype=torch.int64)
    lengths = np.array([sample.response_tokens for sample in samples], np.float64)
    flat = zero_spread(torch.from_numpy(rewards), groups)
    missing = [
        np.count_nonzero(~np.isfinite(sample.behavior_logprobs[sample.response_mask]))
        for sample in samples
        if sample.behavior_logprobs is not None
    ]
    metrics = {
        "training/samples": float(len(counted)),
        "training/left_out": float(len(samples) - len(counted)),
        "training/rollout_probs_missing": float(sum(missing)),
    }
    metrics |= summary("critic/rewards", rewards[~np.isnan(rewards)])
    metrics |= summary("response_length", lengths)
    if len(flat):
        metrics["frac_reward_zero_std"] = flat.double().mean().item()
    if len(samples):
        metrics["response_length/clip_ratio"] = float(np.mean([sample.truncated for sample in samples]))
    return metrics


@dataclass(slots=True)
class _Step:
    """The samples that count in one step, and what is computed for them before the first update."""

    learner: Learner
    samples: list[Sample]
    indices: npt.NDArray[np.int64]  # of `samples` in the training batch, for records
    algorithm: Algorithm
    reference: LogprobSource | None
    old: TokenColumn | None = None
    ref: TokenColumn | None = None
    ref_kl: float | None = None

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([sample.response_mask for sample in self.samples])

    def advantages(self) -> TokenColumn:
        """[N] for each sample; computes old and reference log-probs where they are needed for it."""
        algorithm = self.algorithm
        scores = torch.tensor([sample.reward for sample in self.samples], dtype=torch.float64)
        lengths = torch.tensor([sample.response_tokens for sample in self.samples])
        segments = Segments.of_lengths(lengths)
        if self.reference is not None and algorithm.needs_reference:
            self.ref = self.reference.logprobs(self.samples)
        kl = None
        if algorithm.kl.placement == "reward":
            self.old = self.learner.logprobs(self.samples)
            estimate = KL_ESTIMATORS.bind(algorithm.kl.estimator, {})
            kl = estimate(logprobs=self._flat(self.old), ref_logprobs=self._flat(self.ref))
            self.ref_kl = kl.mean().item()
        rewards = token_rewards(scores, segments, kl=kl, coef=algorithm.kl.coef)
        advantages: torch.Tensor = ADVANTAGES.bind(algorithm.advantage, algorithm.parameters())(
            rewards=segments.sums(rewards),
            groups=torch.tensor([sample.group for sample in self.samples]),
            token_rewards=rewards,
            segments=segments,
        )
        if len(advantages) == len(self.samples):  # one a sample; with one token each it is the same
            advantages = segments.spread(advantages)
        if algorithm.whiten:
            advantages = whiten(advantages)
        return scatter_tokens(advantages.numpy(), self.samples)

    def run(self, deals: list[list[npt.NDArray[np.int64]]], advantages: TokenColumn) -> list[UpdateResult]:
        """All updates of the step, a deal of mini-batches an epoch."""
        inert = self.algorithm.zero_advantage_is_inert
        active = np.array([not inert or bool(column.any()) for column in advantages])
        old = self.old or self._old_logprobs(active, deals)
        objective = PolicyObjective(self.algorithm)
        updates: list[UpdateResult] = []
        for dealt in (dealt for deal in deals for dealt in deal if len(dealt)):
            chosen = dealt[active[dealt]]
            columns = {"advantages": [advantages[i] for i in chosen]}
            if updates or len(deals) > 1 or self.old is not None:
                columns["old_logprobs"] = [old[i] for i in chosen]
            if self.ref is not None:
                columns["ref_logprobs"] = [self.ref[i] for i in chosen]
            updates.append(
                self.learner.update(
                    [self.samples[i] for i in chosen],
                    objective,
                    totals=total_counts([self.samples[i] for i in dealt]),
                    indices=[int(self.indices[i]) for i in chosen],
                    **columns,
                )
            )
        return updates

    def metrics(self, results: list[UpdateResult], epochs: int) -> dict[str, float]:
        """Of all updates as one; each epoch passes all samples."""
        merged = merge_updates([result.metrics for result in results])
        everything = epochs * total_counts(self.samples).tokens
        if self.ref_kl is not None:
            merged["ref_kl"] = self.ref_kl
        return merged | {"computed_share": merged.pop("tokens") / everything}

    def _old_logprobs(
        self, active: npt.NDArray[np.bool_], deals: list[list[npt.NDArray[np.int64]]]
    ) -> TokenColumn:
        """At the weights of now; nothing is computed for samples that need none."""
        needed = active.copy()
        if len(deals) == 1:
            needed[deals[0][0]] = False
        chosen = np.flatnonzero(needed)
        old: TokenColumn = [np.zeros(0, np.float32)] * len(self.samples)
        if len(chosen):
            scored = self.learner.logprobs([self.samples[i] for i in chosen])
            for i, column in zip(chosen, scored, strict=True):
                old[i] = column
        return old

    def _flat(self, column: TokenColumn | None) -> torch.Tensor | None:
        if column is None:
            return None
        flat = [each[sample.response_mask] for each, sample in zip(column, self.samples, strict=True)]
        return torch.from_numpy(np.concatenate(flat)).double()
