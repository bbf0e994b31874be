"""What turns log-probs of trained tokens into a loss; a learner runs any of them.

One objective for each kind of training: `PolicyObjective` for every policy-gradient algorithm,
`SupervisedObjective` for demonstrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from roll_learners.aggregation import token_mean
from roll_learners.algorithm import Algorithm
from roll_learners.forward import EntropyUse
from roll_learners.losses.policy import PolicyLoss
from roll_learners.mismatch import probability_gap
from roll_learners.registry import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES
from roll_learners.segments import Segments, Totals

Reduction = Literal["sum", "mean", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What an objective sees of a micro-batch: N trained tokens of S sequences.

    Attributes:
        logprobs: [N], with gradient.
        entropy: [N], or None if the objective asks for none.
        segments: Of the N tokens.
        totals: Denominators of the whole mini-batch.
        columns: [N] each; what the caller of `update` passed, and "behavior_logprobs" where all samples
            have them.
    """

    logprobs: Tensor
    entropy: Tensor | None
    segments: Segments
    totals: Totals
    columns: Mapping[str, Tensor]


class Metric(NamedTuple):
    """Attributes:
    values: Any shape; without gradient.
    reduction: Over the micro-batches of an update: "sum"; "mean" over all values; or "spread", which
        gives mean, max and std under the suffixes _mean, _max and _std.
    """

    values: Tensor
    reduction: Reduction


class Terms(NamedTuple):
    """Attributes:
    loss: Scalar, this micro-batch's share of the mini-batch's loss.
    metrics: By name; a name without "/" gets a prefix from the step that runs the update.
    """

    loss: Tensor
    metrics: Mapping[str, Metric]


class Objective(Protocol):
    """Turns one micro-batch into its share of a loss that is the same for every split."""

    @property
    def entropy(self) -> EntropyUse:
        """Whether `TokenBatch.entropy` is needed, and with gradient."""
        ...

    def terms(self, tokens: TokenBatch) -> Terms:
        """The loss and metrics of a micro-batch. Depends on its arguments alone."""
        ...


class PolicyObjective:
    """The policy loss of an algorithm, plus its KL term, less its entropy bonus.

    Columns: "advantages"; "old_logprobs", or nothing if the update starts at the weights with which
    the training step began, where they equal the log-probs now; "ref_logprobs" for a KL term in the loss.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        parameters = algorithm.parameters()
        self._policy_loss = POLICY_LOSSES.bind(algorithm.policy_loss, parameters)
        self._aggregate = AGGREGATIONS.bind(algorithm.aggregation, parameters)
        self._kl = KL_ESTIMATORS.bind(algorithm.kl.estimator, {})

    @property
    def entropy(self) -> EntropyUse:
        """A metric always, with gradient if there is a bonus."""
        return "gradient" if self.algorithm.entropy_coef else "metric"

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`.

        Raises:
            LearnerError: A column that the algorithm needs is absent.
        """
        columns = dict(tokens.columns)
        old = columns.setdefault("old_logprobs", tokens.logprobs.detach())
        policy: PolicyLoss = self._policy_loss(logprobs=tokens.logprobs, segments=tokens.segments, **columns)
        loss = pg_loss = self._sum(policy.losses, tokens)
        metrics = {
            "pg_loss": Metric(pg_loss.detach(), "sum"),
            "pg_clipfrac": Metric(policy.clipped.to(old.dtype), "mean"),
            "ppo_kl": Metric(old - tokens.logprobs.detach(), "mean"),
            "ratio": Metric(policy.ratio, "spread"),
        }
        if self.algorithm.kl.placement == "loss":
            ref_kl: Tensor = self._kl(logprobs=tokens.logprobs, ref_logprobs=columns.get("ref_logprobs"))
            kl_loss = self._sum(ref_kl, tokens)
            loss = loss + self.algorithm.kl.coef * kl_loss
            metrics["kl_loss"] = Metric(kl_loss.detach(), "sum")
            metrics["ref_kl"] = Metric(ref_kl.detach(), "mean")
        if tokens.entropy is not None:
            metrics["entropy"] = Metric(tokens.entropy.detach(), "mean")
            if self.algorithm.entropy_coef:
                loss = loss - self.algorithm.entropy_coef * self._sum(tokens.entropy, tokens)
        if "behavior_logprobs" in columns:
            gaps = probability_gap(old, columns["behavior_logprobs"]).gaps
            metrics["training/rollout_probs_diff"] = Metric(gaps, "spread")
        return Terms(loss=loss, metrics=metrics)

    def _sum(self, losses: Tensor, tokens: TokenBatch) -> Tensor:
        value: Tensor = self._aggregate(losses=losses, segments=tokens.segments, totals=tokens.totals)
        return value


class SupervisedObjective:
    """The negative log-likelihood of the trained tokens, every token of the batch weighing the same."""

    entropy: EntropyUse = "none"

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`."""
        loss = token_mean(-tokens.logprobs, tokens.totals)
        return Terms(loss=loss, metrics={"nll": Metric(loss.detach(), "sum")})
