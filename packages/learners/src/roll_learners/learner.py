"""What the training steps ask of a learner, whatever runs it: one process, FSDP2 or Megatron-Core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from roll_learners.batch import Column
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.segments import Totals
from roll_learners.update import UpdateResult


class LogprobSource(Protocol):
    """Scores tokens under fixed weights: a learner between updates, or a reference policy."""

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token: an array [N] for each sample, 0 elsewhere."""
        ...


class Learner(LogprobSource, Protocol):
    """A model that is trained. `roll_learners.conformance.check_learner` tests an implementation."""

    def update(
        self,
        samples: Sequence[Sample],
        objective: Objective,
        *,
        totals: Totals | None = None,
        indices: Sequence[int] | None = None,
        **columns: Column,
    ) -> UpdateResult:
        """One optimizer step on these samples.

        The gradient does not depend on how the samples are split into micro-batches, on their order,
        on padding, or on tokens and columns outside the response masks. A loss or gradient that is
        not finite takes no step and leaves every weight and the optimizer's state as they were.

        Args:
            samples: The mini-batch.
            objective: What turns log-probs into a loss.
            totals: Denominators, where samples are left out because they add exactly nothing; None
                counts the samples given.
            indices: What a `SkippedUpdate` calls the samples, the same numbers in every process; None is
                their positions among `samples`.
            **columns: Numbers for the objective: one for each sample, or for each token.

        Returns:
            Metrics of the objective, and "tokens" (computed), "skipped_steps" (0 or 1), "loss",
            "grad_norm" (before clipping) and "lr"; of an update that is not finite only the first two,
            and its record.
        """
        ...
