"""One step of policy-gradient training: from scored samples to new weights.

`roll_launch`'s pipelines call it once a batch; so can a trainer of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from roll_learners.advantages.ensemble import mean_values
from roll_learners.advantages.group import zero_spread
from roll_learners.algorithm import Algorithm
from roll_learners.batch import Column, scatter_tokens, total_counts
from roll_learners.errors import LearnerError
from roll_learners.learner import Learner, LogprobSource
from roll_learners.masks import difficulty_mask, error_length_mask
from roll_learners.metrics import merge_updates, prefixed, summary
from roll_learners.mismatch import correction_weights
from roll_learners.policy_objective import PolicyObjective, ReferenceLogits
from roll_learners.sample import Sample, trainable
from roll_learners.segments import Totals
from roll_learners.steps.columns import TokenColumn, flat, segments_of, turns_of
from roll_learners.steps.credit import (
    credit,
    critic_returns,
    entropy_weights,
    finished,
    reward_tokens,
    teacher_penalties,
)
from roll_learners.steps.critic import CriticUpdates, critic_values, start_critic_step, value_metrics
from roll_learners.steps.roles import Roles, state_source
from roll_learners.update import SkippedUpdate, StepResult, UpdateResult


def policy_step(
    learner: Learner,
    samples: Sequence[Sample],
    algorithm: Algorithm,
    *,
    mini_batches: int,
    epochs: int,
    rng: np.random.Generator,
    reference: LogprobSource | None = None,
    roles: Roles | None = None,
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
        roles: Further models, if the algorithm uses any.

    Returns:
        Metrics by the names verl uses: actor/*, critic/*, response_length/*,
        training/rollout_probs_diff_*, and frac_reward_zero_std; and the updates of the actor or of a
        critic that were not finite, with the positions of their samples in `samples`.

    Raises:
        LearnerError: An argument out of range, no model where one is needed, or samples that do
            not fit the learner.
    """
    beside = Roles() if roles is None else roles
    _check(algorithm, reference, beside, mini_batches, epochs)
    counted = np.flatnonzero(trainable(samples, mask_truncated=algorithm.mask_truncated))
    metrics = _sample_metrics(samples, counted)
    if not len(counted):
        return StepResult(metrics=metrics, updates=0)
    step = _Step(learner, [samples[i] for i in counted.tolist()], counted, algorithm, reference, beside)
    advantages = step.advantages(mini_batches, epochs, rng)
    updates = step.update_actor(advantages, mini_batches, epochs, rng) if beside.update_actor else 0
    step.finish_critics()
    metrics |= summary("critic/advantages", np.concatenate(advantages)[step.trained]) | step.critic_metrics
    return StepResult(metrics=metrics | step.actor_metrics, updates=updates, skipped=tuple(step.skipped))


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


def _check(
    algorithm: Algorithm, reference: LogprobSource | None, roles: Roles, mini_batches: int, epochs: int
) -> None:
    if mini_batches < 1 or epochs < 1:
        raise LearnerError(
            f"policy_step: mini_batches {mini_batches}, epochs {epochs}: each must be at least 1"
        )
    name, critics = repr(algorithm.name), len(roles.critics)
    if algorithm.needs_reference and reference is None:
        raise LearnerError(f"algorithm {name} has a KL term: policy_step needs a reference")
    if algorithm.kl.uses_distributions and state_source(reference) is None:
        raise LearnerError(
            f"kl.estimator {algorithm.kl.estimator!r} needs a reference that gives its distribution, such as "
            f"LocalScorer; got {type(reference).__name__}"
        )
    if algorithm.rhythm is not None and roles.attention is None:
        raise LearnerError(f"algorithm {name} has a rhythm: policy_step needs roles.attention")
    if algorithm.needs_critic and not critics:
        raise LearnerError(f"algorithm {name} needs a critic: policy_step needs roles.critics")
    if critics and not algorithm.needs_critic:
        raise LearnerError(f"algorithm {name} uses no critic, but roles.critics has {critics}")
    if algorithm.critic.compares and critics < 2:
        raise LearnerError(
            f"algorithm {name} compares critics: roles.critics has {critics}, allowed is 2 or more"
        )
    if not roles.update_actor and not critics:
        raise LearnerError("policy_step: roles.update_actor is False and there is no critic to update")
    if algorithm.kl.target is not None and roles.kl is None:
        raise LearnerError(f"algorithm {name} has kl.target: policy_step needs roles.kl, a KlController")


@dataclass(slots=True)
class _Step:
    """The samples that count in one step, and what is computed for them before the first update."""

    learner: Learner
    samples: list[Sample]
    indices: npt.NDArray[np.int64]  # of `samples` in the training batch, for records
    algorithm: Algorithm
    reference: LogprobSource | None
    roles: Roles
    old: TokenColumn | None = None
    ref: TokenColumn | None = None
    ref_kl: float | None = None
    entropy_weights: TokenColumn | None = None
    critic_updates: CriticUpdates | None = None
    critic_metrics: dict[str, float] = field(default_factory=dict)
    actor_metrics: dict[str, float] = field(default_factory=dict)
    skipped: list[SkippedUpdate] = field(default_factory=list)

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([sample.response_mask for sample in self.samples])

    def kept(self) -> npt.NDArray[np.int64]:
        """Positions of the samples that stay in the loss."""
        algorithm = self.algorithm
        rewards = np.array([sample.reward for sample in self.samples])
        keep = np.ones(len(self.samples), np.bool_)
        if algorithm.min_group_reward is not None or algorithm.max_group_reward is not None:
            low = -np.inf if algorithm.min_group_reward is None else algorithm.min_group_reward
            high = np.inf if algorithm.max_group_reward is None else algorithm.max_group_reward
            groups = np.array([sample.group for sample in self.samples])
            keep &= difficulty_mask(rewards, groups, low=low, high=high)
        if algorithm.max_error_tokens is not None:
            lengths = np.array([sample.response_tokens for sample in self.samples])
            keep &= error_length_mask(rewards, lengths, longest=algorithm.max_error_tokens)
        return np.flatnonzero(keep)

    def advantages(self, mini_batches: int, epochs: int, rng: np.random.Generator) -> TokenColumn:
        """[N] for each sample; updates critics, and computes log-probs that are needed before the split."""
        algorithm, roles, samples = self.algorithm, self.roles, self.samples
        charged = algorithm.kl.placement == "reward"
        if self.reference is not None and algorithm.needs_reference and not algorithm.kl.uses_distributions:
            self.ref = self.reference.logprobs(samples)
        if charged or roles.teachers or algorithm.correction.denominator == "surviving":
            self.old = self.learner.logprobs(samples)
        coef = algorithm.kl.coef if roles.kl is None else roles.kl.coef
        rewarded = reward_tokens(samples, algorithm, old=self.old, ref=self.ref, coef=coef)
        if rewarded.kl is not None:
            self.ref_kl = rewarded.kl.mean().item()
            if roles.kl is not None:
                mean = segments_of(samples).means(rewarded.kl).mean().item()
                roles.kl.observe(mean, sequences=len(samples))
                self.critic_metrics["critic/kl_coef"] = coef
        values = None
        if roles.critics:
            advantages, values = self._with_critics(rewarded.rewards, mini_batches, epochs, rng)
        else:
            advantages = credit(samples, algorithm, rewarded.rewards).advantages
        if roles.teachers and self.old is not None:
            advantages = advantages - teacher_penalties(roles.teachers, samples, self.old)
        weights = entropy_weights(algorithm, values)
        if weights is not None:
            self.entropy_weights = scatter_tokens(weights.numpy(), samples)
        advantages = finished(advantages, samples, algorithm, attention=roles.attention, critic_values=values)
        return scatter_tokens(advantages.numpy(), samples)

    def _with_critics(
        self, rewards: torch.Tensor, mini_batches: int, epochs: int, rng: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages[N] and values[M, N], with the critics updated before or after these are taken."""
        algorithm, critics, samples = self.algorithm, self.roles.critics, self.samples
        before, apart = algorithm.critic.order == "before", self.roles.critics_apart
        returns = critic_returns(rewards, None, algorithm, segments_of(samples))
        values = None if before else critic_values(critics, samples, apart=apart)
        if values is not None:
            estimate = credit(samples, algorithm, rewards, values=mean_values(values))
            returns = returns if estimate.returns is None else estimate.returns
        self.critic_updates = start_critic_step(
            critics,
            samples,
            returns,
            algorithm.critic,
            values=values,
            mini_batches=mini_batches,
            epochs=epochs,
            rng=rng,
            apart=apart,
        )
        if before or not apart:
            self.finish_critics()
        if values is None:
            values = critic_values(critics, samples, apart=apart)
            estimate = credit(samples, algorithm, rewards, values=mean_values(values))
        self.critic_metrics |= value_metrics(values, returns)
        return estimate.advantages, values

    def finish_critics(self) -> None:
        """Waits for the updates of critics that may still be under way."""
        if self.critic_updates is not None:
            metrics, skipped = self.critic_updates.result()
            self.critic_metrics |= metrics
            self.skipped = [*(self._renamed(each) for each in skipped), *self.skipped]
            self.critic_updates = None

    def _renamed(self, skipped: SkippedUpdate) -> SkippedUpdate:
        """With the samples' positions in the training batch."""
        return replace(skipped, samples=tuple(int(self.indices[i]) for i in skipped.samples))

    def update_actor(
        self, advantages: TokenColumn, mini_batches: int, epochs: int, rng: np.random.Generator
    ) -> int:
        """Updates on the samples that stay in the loss; the number of those that were taken."""
        kept = self.kept()
        if not len(kept):
            return 0
        samples = [self.samples[i] for i in kept]
        deals = [np.array_split(kept[_shuffled(samples, rng)], mini_batches) for _ in range(epochs)]
        results = self.run(deals, advantages)
        self.actor_metrics = prefixed(self.metrics(results, epochs, kept), "actor")
        self.skipped += [result.skipped for result in results if result.skipped is not None]
        return sum(result.skipped is None for result in results)

    def run(self, deals: list[list[npt.NDArray[np.int64]]], advantages: TokenColumn) -> list[UpdateResult]:
        """All updates of the step, a deal of mini-batches an epoch."""
        inert = self.algorithm.zero_advantage_is_inert
        active = np.array([not inert or bool(column.any()) for column in advantages])
        old = self.old or self._old_logprobs(active, deals)
        objective = PolicyObjective(self.algorithm, self._reference_logits())
        updates: list[UpdateResult] = []
        for dealt in (dealt for deal in deals for dealt in deal if len(dealt)):
            chosen = dealt[active[dealt]]
            columns = self._columns([advantages[i] for i in chosen], chosen)
            if updates or len(deals) > 1 or self.old is not None:
                columns["old_logprobs"] = [old[i] for i in chosen]
            updates.append(
                self.learner.update(
                    [self.samples[i] for i in chosen],
                    objective,
                    totals=self._totals(dealt),
                    indices=[int(self.indices[i]) for i in chosen],
                    **columns,
                )
            )
        return updates

    def _columns(self, advantages: TokenColumn, chosen: npt.NDArray[np.int64]) -> dict[str, Column]:
        """What the objective needs of the chosen samples, but for the old log-probs."""
        samples = [self.samples[i] for i in chosen]
        columns: dict[str, Column] = {"advantages": advantages}
        if self.ref is not None:
            columns["ref_logprobs"] = [self.ref[i] for i in chosen]
        source = state_source(self.reference)
        if self.algorithm.kl.uses_distributions and source is not None:
            columns["ref_states"] = source.states(samples)
        if self.entropy_weights is not None:
            columns["entropy_weights"] = [self.entropy_weights[i] for i in chosen]
        if self.algorithm.needs_turns:
            columns["turn_starts"] = [sample.turn_starts.astype(np.float64) for sample in samples]
        if any(sample.expert for sample in self.samples):
            columns["expert"] = np.array([float(sample.expert) for sample in samples])
        return columns

    def _totals(self, dealt: npt.NDArray[np.int64]) -> Totals:
        """Denominators of a mini-batch: all its tokens, or those that the correction leaves."""
        samples, rule = [self.samples[i] for i in dealt], self.algorithm.correction
        if rule.denominator == "original" or self.old is None:
            return total_counts(samples)
        behavior = [s.behavior_logprobs for s in samples if s.behavior_logprobs is not None]
        if len(behavior) < len(samples):
            raise LearnerError(f"algorithm {self.algorithm.name!r} needs behavior_logprobs of every sample")
        segments = segments_of(samples)
        old = flat([self.old[i] for i in dealt], samples)
        kept = correction_weights(
            old, flat([*behavior], samples), rule, segments, turns_of(samples, segments)
        ).kept
        return Totals.of_lengths(segments.sums(kept.double()).long())

    def _reference_logits(self) -> ReferenceLogits | None:
        source = state_source(self.reference)
        if source is None or not self.algorithm.kl.uses_distributions:
            return None
        return ReferenceLogits(source.logits, source.temperature)

    def metrics(
        self, results: list[UpdateResult], epochs: int, kept: npt.NDArray[np.int64]
    ) -> dict[str, float]:
        """Of all updates as one; each epoch passes all samples that are kept."""
        merged = merge_updates([result.metrics for result in results])
        everything = epochs * total_counts([self.samples[i] for i in kept]).tokens
        if self.ref_kl is not None:
            merged["ref_kl"] = self.ref_kl
        return merged | {"computed_share": merged.pop("tokens") / everything}

    def _old_logprobs(
        self, active: npt.NDArray[np.bool_], deals: list[list[npt.NDArray[np.int64]]]
    ) -> TokenColumn:
        """At the weights of now; nothing is computed for samples that need none."""
        needed = np.zeros_like(active)
        for dealt in (dealt for deal in deals for dealt in deal):
            needed[dealt] = active[dealt]
        if len(deals) == 1:
            needed[deals[0][0]] = False
        chosen = np.flatnonzero(needed)
        old: TokenColumn = [np.zeros(0, np.float32)] * len(self.samples)
        if len(chosen):
            scored = self.learner.logprobs([self.samples[i] for i in chosen])
            for i, column in zip(chosen, scored, strict=True):
                old[i] = column
        return old
