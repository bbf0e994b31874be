"""The forward pass over one new token a row: the model's own, or a lean one that agrees with it."""

import logging

import torch
from transformers import PreTrainedModel

from roll_rollout.transformers_engine.kv_slots import KvSlots
from roll_rollout.transformers_engine.lean_decode import LeanDecode, lean_decode

logger = logging.getLogger(__name__)

_AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Most that two ways of computing the same logits may differ by, against their spread."""


class DecodeStep:
    """The step of one model.

    Args:
        model: In evaluation mode.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._lean: LeanDecode | None = lean_decode(model)
        self._trusted = False

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: KvSlots, *, plain: bool
    ) -> torch.Tensor:
        """Returns logits [B, V].

        Args:
            tokens: int64[B], the newest of each row.
            positions: int64[B], where they stand.
            slots: Between `begin_step` and `end_step`.
            plain: Whether the model has layers beside its weights, such as an adapter's.
        """
        if self._lean is None or plain:
            return self._forward(tokens, positions, slots)
        if self._trusted:
            return self._lean(tokens, positions, slots)
        return self._compared(self._lean, tokens, positions, slots)

    def _compared(
        self, lean: LeanDecode, tokens: torch.Tensor, positions: torch.Tensor, slots: KvSlots
    ) -> torch.Tensor:
        """Returns the logits of a first step; lean ones if they are the model's, and are so from now on."""
        expected = self._forward(tokens, positions, slots)
        found = lean(tokens, positions, slots)
        gap, spread = (found - expected).abs().max().item(), expected.float().std().item()
        if gap <= _AGREEMENT.get(expected.dtype, 0.0) * max(spread, 1.0):
            self._trusted = True
            return found
        if gap == gap and spread == spread:
            name = type(self._model).__name__
            logger.warning("the lean step of %s differs by %.2g from its forward; it is not used", name, gap)
            self._lean = None
        return self._forward(tokens, positions, slots)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, slots: KvSlots) -> torch.Tensor:
        logits: torch.Tensor = self._model(
            input_ids=tokens.unsqueeze(1),
            position_ids=positions.unsqueeze(1),
            attention_mask=slots.mask,
            past_key_values=slots.cache,
            use_cache=True,
        ).logits[:, -1]
        return logits
