"""The weight of a KL penalty over the steps of a run: fixed, or held near a target.

Torch-free; whoever owns the run keeps one and writes its coefficient into checkpoints.
"""

from __future__ import annotations

from roll_learners.errors import LearnerError

LARGEST_ERROR = 0.2
"""The relative error counts for at most this much, so that one bad batch moves the weight little."""


class KlController:
    """Holds a coefficient; with a target it rises while KL is above the target and falls while below.

    Source: Ziegler et al., arXiv 1909.08593, section 2.2.
    """

    def __init__(self, coef: float, *, target: float | None = None, horizon: int = 10_000) -> None:
        """Args:
        coef: The first coefficient, at least 0.
        target: Mean KL per token to hold, above 0, or None for a fixed coefficient.
        horizon: Sequences after which a constant error has changed the coefficient about e-fold.

        Raises:
            LearnerError: A number out of range.
        """
        if not coef >= 0 or (target is not None and not target > 0) or horizon < 1:
            raise LearnerError(
                f"KlController: coef {coef}, target {target}, horizon {horizon}: allowed are coef >= 0, "
                "target > 0 or None, horizon >= 1"
            )
        self.coef = coef
        self.target = target
        self.horizon = horizon

    def observe(self, kl: float, *, sequences: int) -> float:
        """The coefficient after a batch, for the next one.

        Args:
            kl: Mean over sequences of the token mean of the estimate.
            sequences: Of the batch.
        """
        if self.target is not None:
            error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
            self.coef *= 1 + error * sequences / self.horizon
        return self.coef
