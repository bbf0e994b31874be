"""A penalty for distance from a reference policy, as data. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name
from roll_learners.registry import KL_ESTIMATORS

KlPlacement = Literal["none", "reward", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """A penalty for distance from a reference policy, such as
    `KlPenalty(placement="loss", estimator="k3", coef=0.001)`.

    Attributes:
        placement: "none"; "reward" subtracts it from each token's reward; "loss" adds it to the loss.
        estimator: A name in `KL_ESTIMATORS`: "k1" is usual in the reward, "k2" and "k3" in the loss; "full"
            is exact, and needs the reference beside the learner.
        coef: Its weight, at least 0.
        target: Mean KL per token near which the weight is held, from `coef` on; above 0, or None.
        horizon: Sequences after which a constant error of the KL has changed the weight about e-fold.
    """

    placement: KlPlacement = "none"
    estimator: str = "k3"
    coef: float = 0.0
    target: float | None = None
    horizon: int = 10_000

    def __post_init__(self) -> None:
        if self.placement not in get_args(KlPlacement):
            raise unknown_name("KL placement", self.placement, get_args(KlPlacement))
        traits = KL_ESTIMATORS.part(self.estimator).traits
        if not (math.isfinite(self.coef) and self.coef >= 0):
            raise LearnerError(f"algorithm.kl.coef is {self.coef}: allowed is at least 0.0")
        if self.placement == "none" and self.coef:
            raise LearnerError(f"kl.coef is {self.coef} but kl.placement is 'none': choose reward or loss")
        if self.placement != "none" and not self.coef:
            raise LearnerError(
                f"kl.placement is {self.placement!r} but kl.coef is 0: a weight above 0 is needed"
            )
        if self.placement == "reward" and "in_loss_only" in traits:
            raise LearnerError(f"kl.estimator {self.estimator!r} is for kl.placement 'loss', not 'reward'")
        self._check_target()

    @property
    def uses_distributions(self) -> bool:
        """True if the reference must supply its whole distribution, not only log-probs of tokens."""
        return self.placement == "loss" and "uses_logits" in KL_ESTIMATORS.part(self.estimator).traits

    def _check_target(self) -> None:
        if self.horizon < 1:
            raise LearnerError(f"kl.horizon is {self.horizon}: at least 1 sequence is needed")
        if self.target is None:
            return
        if not (math.isfinite(self.target) and self.target > 0):
            raise LearnerError(f"kl.target is {self.target}: allowed are numbers above 0, or null")
        if self.placement != "reward":
            raise LearnerError(
                f"kl.target is {self.target} but kl.placement is {self.placement!r}: it adapts the weight "
                "of 'reward' alone"
            )
