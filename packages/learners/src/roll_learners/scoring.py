"""A causal language model and how it is run: the part that a learner and a reference have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from roll_learners.batch import MicroBatch, micro_batches, scatter_tokens
from roll_learners.errors import LearnerError
from roll_learners.forward import EntropyUse, TokenScores, check_model, runs_shared_rows, score_tokens
from roll_learners.sample import Sample


class LocalScorer:
    """Log-probs of samples on one device. By itself it serves as a reference policy."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        micro_batch_tokens: int = 16384,
        temperature: float = 1.0,
        device: str = "cpu",
    ) -> None:
        """Args:
        model: A causal language model; it is moved to `device` and its dropout switched off, so that
            the ratio of two passes at equal weights is 1.
        micro_batch_tokens: Most padded tokens in one pass.
        temperature: The one that completions are sampled with; divides the logits.
        device: A torch device.

        Raises:
            LearnerError: A setting is out of range, or the model's logits are not supported.
        """
        if not temperature > 0:
            raise LearnerError(f"learner temperature is {temperature}: allowed is above 0")
        if micro_batch_tokens < 1:
            raise LearnerError(f"learner micro_batch_tokens is {micro_batch_tokens}: at least 1 is needed")
        model.to(device).eval()  # type: ignore[arg-type]  # transformers types `to` for a bound module
        check_model(model)
        self.model = model
        self.device = device
        self.dtype = np.float64 if model.dtype == torch.float64 else np.float32
        self._micro_batch_tokens = micro_batch_tokens
        self._temperature = temperature
        self._sharing = model.config.get_text_config().hidden_size if runs_shared_rows(model) else None

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """The micro-batches that hold each sample with a trained token once.

        Raises:
            LearnerError: A sample is longer than micro_batch_tokens.
        """
        return micro_batches(
            samples, budget=self._micro_batch_tokens, sharing=self._sharing, device=self.device
        )

    def score(self, batch: MicroBatch, *, entropy: EntropyUse = "none") -> TokenScores:
        """The scores of a micro-batch's trained tokens, with gradient where that is enabled."""
        return score_tokens(self.model, batch, temperature=self._temperature, entropy=entropy)

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token at the current weights, 0 elsewhere.

        Returns:
            float32[N] for each sample (float64 from a float64 model).
        """
        columns: list[npt.NDArray[np.floating]] = [
            np.zeros(len(sample.token_ids), self.dtype) for sample in samples
        ]
        for batch in self.batches(samples):
            with torch.no_grad():
                flat = self.score(batch).logprobs.cpu().numpy()
            scored = scatter_tokens(flat, [samples[i] for i in batch.members])
            for i, column in zip(batch.members, scored, strict=True):
                columns[i] = column
        return columns
