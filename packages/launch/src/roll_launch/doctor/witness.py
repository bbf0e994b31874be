"""The third opinion between engine and learner: one whole sequence at a time, in float32, without a cache."""

import numpy as np
import torch
from transformers import PreTrainedModel

Kept = tuple[int, float, float]
"""top_k (0 is off), top_p (1 is off), min_p (0 is off)."""

EVERYTHING: Kept = (0, 1.0, 0.0)


class Witness:
    """Log-probs in the plainest way.

    Args:
        model: With the learner's weights; it is converted to float32.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._model.to(torch.float32)  # type: ignore[arg-type]  # transformers types `to` for a bound module
        self._model.train(False)
        self._logits: dict[tuple[bytes, bytes], torch.Tensor] = {}

    def logprobs(
        self,
        prompt_ids: np.ndarray,
        token_ids: np.ndarray,
        *,
        temperature: float,
        kept: Kept = EVERYTHING,
    ) -> np.ndarray:
        """Returns float32[T]: the log-prob of each token after the prompt and the tokens before it.

        Args:
            prompt_ids: int32[P].
            token_ids: int32[T].
            temperature: Divides the logits; of greedy tokens it is 1.
            kept: Filters; a token that they drop has minus infinity.
        """
        scores = self._scores(prompt_ids, token_ids) / (temperature or 1.0)
        if kept != EVERYTHING:
            scores = _filtered(scores, kept)
        tokens = torch.from_numpy(token_ids.astype(np.int64))
        found: np.ndarray = scores.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0].numpy()
        return found

    def _scores(self, prompt_ids: np.ndarray, token_ids: np.ndarray) -> torch.Tensor:
        key = (prompt_ids.astype(np.int32).tobytes(), token_ids.astype(np.int32).tobytes())
        if key not in self._logits:
            ids = np.concatenate([prompt_ids, token_ids]).astype(np.int64)
            with torch.inference_mode():
                logits = self._model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits
            self._logits[key] = logits[0, len(prompt_ids) - 1 : -1].float()
        return self._logits[key]


def _filtered(scores: torch.Tensor, kept: Kept) -> torch.Tensor:
    """Returns scores [T, V] with minus infinity where top-k, then top-p, then min-p drop the token."""
    top_k, top_p, min_p = kept
    ordered, places = scores.sort(dim=-1, descending=True)
    rank = torch.arange(scores.shape[1])
    keep = (rank < top_k) if top_k else torch.ones_like(rank, dtype=torch.bool)
    weights = ordered.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    keep = keep & (weights.cumsum(dim=-1) - weights < top_p) & (weights >= min_p * weights[:, :1])
    dropped = torch.ones_like(keep).scatter(1, places, ~keep)
    return scores.masked_fill(dropped, float("-inf"))
