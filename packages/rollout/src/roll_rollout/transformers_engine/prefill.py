"""The forward pass over prompts: several distinct prompts at once where little padding is needed."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from roll_rollout.transformers_engine.prompts import PromptState

_MAX_TOKENS = 4096
"""Padded tokens of a pass over several prompts; bounds the mask and the activations."""
_CHEAP_TOKENS = 512
_MAX_PADDING = 1.25


def prefill(
    model: PreTrainedModel, prompts: Sequence[np.ndarray], *, pad: bool
) -> Iterator[tuple[int, PromptState]]:
    """Yields the index and the state of every prompt, pass by pass.

    Args:
        model: In evaluation mode, under inference mode.
        prompts: int32[P] each.
        pad: Whether prompts of different lengths may share a pass. Sliding-window layers need a mask of
            their own, which transformers makes only without padding.
    """
    for batch in _passes([len(prompt) for prompt in prompts], pad=pad):
        states = _forward(model, [prompts[index] for index in batch])
        yield from zip(batch, states, strict=True)


def _passes(lengths: Sequence[int], *, pad: bool) -> list[list[int]]:
    """Returns indices of prompts, grouped by similar length."""
    passes: list[list[int]] = []
    real = 0
    for index in sorted(range(len(lengths)), key=lambda each: (lengths[each], each)):
        length = lengths[index]
        if passes:
            # Sorted, so this prompt is the longest of the pass and sets its width.
            padded = length * (len(passes[-1]) + 1)
            fits = padded <= max(_CHEAP_TOKENS, _MAX_PADDING * (real + length)) and padded <= _MAX_TOKENS
            if fits and (pad or lengths[passes[-1][-1]] == length):
                passes[-1].append(index)
                real += length
                continue
        passes.append([index])
        real = length
    return passes


def _forward(model: PreTrainedModel, prompts: Sequence[np.ndarray]) -> list[PromptState]:
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    starts = np.array([width - len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        ids[row, starts[row] :] = prompt
    positions = np.maximum(np.arange(width) - starts[:, None], 0)
    device = model.device
    cache = DynamicCache()
    logits = model(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(positions).to(device),
        attention_mask=None if starts.max() == 0 else _causal_mask(starts, width, model.dtype, device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    # Iterating over the cache gives keys, values and a sliding window, which a cache without config lacks.
    layers = list(cache)
    keys = torch.stack([layer[0] for layer in layers])
    values = torch.stack([layer[1] for layer in layers])
    # Clones, so that a long-lived prompt does not keep the whole pass in memory.
    return [
        PromptState(
            keys=keys[:, row, :, start:].clone(),
            values=values[:, row, :, start:].clone(),
            logits=logits[row].clone(),
        )
        for row, start in enumerate(starts.tolist())
    ]


def _causal_mask(starts: np.ndarray, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns additive [B, 1, width, width]: each query sees the real tokens up to itself.

    Padding queries see nothing real. The lowest finite number instead of -inf keeps them finite, so that
    they cannot turn others into NaN.
    """
    columns = torch.arange(width, device=device)
    real = columns >= torch.from_numpy(starts).to(device)[:, None]
    seen = real[:, None, None, :] & (columns <= columns[:, None])
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=device), hidden)
