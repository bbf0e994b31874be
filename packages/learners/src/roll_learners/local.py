"""The learner of one process and one device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from roll_learners.local_model import LocalModel
from roll_learners.objective import Objective
from roll_learners.sample import Sample
from roll_learners.schedule import OptimizerSettings
from roll_learners.scoring import LocalScorer


class LocalLearner(LocalModel[Objective]):
    """AdamW on one device. Any objective, any causal language model of transformers.

    Dropout is off also in updates, so that log-probs do not depend on a random state.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
        packing: bool = False,
    ) -> None:
        """Args:
        model: A causal language model; it is moved to `device` and trained in place. Parameters
            that require no gradient stay as they are.
        optimizer: Rates, clipping and schedule.
        micro_batch_tokens: Most tokens in one pass, padding included.
        temperature: The one that completions are sampled with; 1 for demonstrations.
        device: A torch device.
        packing: Samples are laid back to back without padding, see `LocalScorer`.

        Raises:
            LearnerError: A setting is out of range, the model's logits are not supported, or it cannot run
                packed rows.
        """
        self._scorer = LocalScorer(
            model,
            micro_batch_tokens=micro_batch_tokens,
            temperature=temperature,
            device=device,
            packing=packing,
        )
        super().__init__(model, self._scorer, optimizer)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights; see `LocalScorer.logprobs`."""
        return self._scorer.logprobs(samples)
