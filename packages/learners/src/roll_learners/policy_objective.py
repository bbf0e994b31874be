"""The loss of every policy-gradient algorithm, from what an `Algorithm` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.algorithm import Algorithm
from roll_learners.errors import LearnerError
from roll_learners.forward import EntropyUse, LogitsTerm
from roll_learners.losses.policy import PolicyLoss
from roll_learners.mismatch import CorrectionWeights, correction_weights, probability_gap
from roll_learners.objective import Metric, Terms, TokenBatch
from roll_learners.registry import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from roll_learners.segments import Segments, Turns


class ReferenceLogits(NamedTuple):
    """The distribution of a reference, for a KL over the whole vocabulary.

    Attributes:
        logits: From states[n, H] of the column "ref_states" to logits[n, V].
        temperature: Divides both models' logits.
    """

    logits: Callable[[Tensor], Tensor]
    temperature: float


class PolicyObjective:
    """The policy loss of an algorithm, corrected for the engine, plus its KL term, less its entropy bonus.

    Columns: "advantages"; "old_logprobs", or nothing if the update starts at the weights with which
    the training step began, where they equal the log-probs now; "ref_logprobs" for a KL term in the loss
    ("ref_states" for its "full" form); "turn_starts" where the algorithm needs turns; "behavior_logprobs"
    where it needs them; "entropy_weights" and "expert" where there are any.
    """

    def __init__(self, algorithm: Algorithm, reference: ReferenceLogits | None = None) -> None:
        """Args:
        algorithm: What is computed.
        reference: Needed for a KL of whole distributions.

        Raises:
            LearnerError: It is needed and absent.
        """
        self.algorithm = algorithm
        parameters = algorithm.parameters()
        self._policy_loss = POLICY_LOSSES.bind(algorithm.policy_loss, parameters)
        self._aggregate = AGGREGATIONS.bind(algorithm.aggregation, parameters)
        self._kl = KL_ESTIMATORS.bind(algorithm.kl.estimator, {})
        self._reference = reference
        if algorithm.kl.uses_distributions and reference is None:
            raise LearnerError(f"kl.estimator {algorithm.kl.estimator!r} needs the reference's distribution")

    @property
    def entropy(self) -> EntropyUse:
        """A metric always, with gradient if there is a bonus."""
        return "gradient" if self.algorithm.entropy_coef else "metric"

    @property
    def logits_term(self) -> LogitsTerm | None:
        """The KL over the whole vocabulary, if the algorithm asks for it."""
        if self._reference is None or not self.algorithm.kl.uses_distributions:
            return None
        logits, temperature, kl = *self._reference, self._kl

        def term(own: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
            value: Tensor = kl(
                logits=own / temperature, ref_logits=logits(columns["ref_states"]) / temperature
            )
            return value

        return term

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`.

        Raises:
            LearnerError: A column that the algorithm needs is absent.
        """
        columns = dict(tokens.columns)
        old = columns.setdefault("old_logprobs", tokens.logprobs.detach())
        starts = columns.get("turn_starts")
        turns = None if starts is None else Turns.of_starts(starts > 0.5, tokens.segments)
        policy: PolicyLoss = self._policy_loss(
            logprobs=tokens.logprobs, segments=tokens.segments, turns=turns, **columns
        )
        correction = self._correction(old, columns.get("behavior_logprobs"), tokens.segments, turns)
        summed = _Summed(self, tokens, correction)
        losses = policy.losses
        if correction is not None:
            losses = torch.where(correction.kept, losses * correction.weights, 0.0)
        loss = pg_loss = summed(losses)
        metrics = {
            "pg_loss": Metric(pg_loss.detach(), "sum"),
            "pg_clipfrac": Metric(policy.clipped.to(old.dtype), "mean"),
            "ppo_kl": Metric(old - tokens.logprobs.detach(), "mean"),
            "ratio": Metric(policy.ratio, "spread"),
            **_engine_metrics(old, columns.get("behavior_logprobs"), correction),
        }
        if self.algorithm.kl.placement == "loss":
            ref_kl = self._ref_kl(tokens, columns)
            kl_loss = summed(ref_kl)
            loss = loss + self.algorithm.kl.coef * kl_loss
            metrics["kl_loss"] = Metric(kl_loss.detach(), "sum")
            metrics["ref_kl"] = Metric(ref_kl.detach(), "mean")
        if tokens.entropy is not None:
            metrics["entropy"] = Metric(tokens.entropy.detach(), "mean")
            if self.algorithm.entropy_coef:
                weights = columns.get("entropy_weights")
                bonus = tokens.entropy if weights is None else tokens.entropy * weights
                loss = loss - self.algorithm.entropy_coef * summed(bonus)
        return Terms(loss=loss, metrics=metrics)

    def aggregate(self, losses: Tensor, tokens: TokenBatch, segments: Segments) -> Tensor:
        """The micro-batch's share of the sum of losses[N] of tokens in these segments."""
        value: Tensor = self._aggregate(losses=losses, segments=segments, totals=tokens.totals)
        return value

    def _ref_kl(self, tokens: TokenBatch, columns: Mapping[str, Tensor]) -> Tensor:
        if self.algorithm.kl.uses_distributions:
            if tokens.from_logits is None:
                raise LearnerError(f"kl.estimator {self.algorithm.kl.estimator!r} needs logits")
            return tokens.from_logits
        value: Tensor = self._kl(
            logprobs=tokens.logprobs,
            ref_logprobs=columns.get("ref_logprobs"),
            old_logprobs=columns["old_logprobs"],
        )
        return value

    def _correction(
        self, old: Tensor, behavior: Tensor | None, segments: Segments, turns: Turns | None
    ) -> CorrectionWeights | None:
        rule = self.algorithm.correction
        if not rule.corrects:
            return None
        if behavior is None:
            raise LearnerError(
                f"algorithm {self.algorithm.name!r} corrects for the engine: it needs "
                "behavior_logprobs, which this batch lacks"
            )
        return correction_weights(old, behavior, rule, segments, turns)


class _Summed:
    """Sums token losses as the algorithm says, over all tokens or over those that survive the correction."""

    def __init__(
        self, objective: PolicyObjective, tokens: TokenBatch, correction: CorrectionWeights | None
    ) -> None:
        self._objective, self._tokens, self._segments = objective, tokens, tokens.segments
        self._kept: Tensor | None = None
        if correction is not None and objective.algorithm.correction.denominator == "surviving":
            self._kept = correction.kept
            counts = tokens.segments.sums(correction.kept.to(tokens.logprobs.dtype)).long()
            self._segments = Segments.of_lengths(counts)

    def __call__(self, losses: Tensor) -> Tensor:
        left = losses if self._kept is None else losses[self._kept]
        return self._objective.aggregate(left, self._tokens, self._segments)


def _engine_metrics(
    old: Tensor, behavior: Tensor | None, correction: CorrectionWeights | None
) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    if behavior is not None:
        metrics["training/rollout_probs_diff"] = Metric(probability_gap(old, behavior).gaps, "spread")
    if correction is not None:
        metrics["training/correction_weight"] = Metric(correction.weights, "spread")
        metrics["training/correction_rejected"] = Metric((~correction.kept).to(old.dtype), "mean")
    return metrics
