"""Prompts that are computed once for a group: keys, values and last logits, kept while anyone needs them."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptState:
    """A prompt after its forward pass.

    Attributes:
        keys: [L, H, P, D] of L layers, H key heads and P prompt tokens.
        values: [L, H, P, Dv].
        logits: float32 or float64 [V] after the last token.
    """

    keys: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor

    @property
    def length(self) -> int:
        """P, the number of prompt tokens."""
        return self.keys.shape[2]


class PromptCache:
    """States of the prompts of all requests that wait or run; a prompt leaves with its last request."""

    def __init__(self) -> None:
        self._users: Counter[bytes] = Counter()
        self._states: dict[bytes, PromptState] = {}

    def acquire(self, prompt_ids: np.ndarray) -> None:
        """One more request has this prompt."""
        self._users[prompt_ids.tobytes()] += 1

    def release(self, prompt_ids: np.ndarray) -> None:
        """One request less has this prompt."""
        key = prompt_ids.tobytes()
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            self._states.pop(key, None)

    def get(self, prompt_ids: np.ndarray) -> PromptState | None:
        """Returns the state under the current weights, or None."""
        return self._states.get(prompt_ids.tobytes())

    def put(self, prompt_ids: np.ndarray, state: PromptState) -> None:
        """Keeps a state until the last request with the prompt is released."""
        self._states[prompt_ids.tobytes()] = state

    def drop_states(self) -> None:
        """Forgets all states: the weights changed."""
        self._states.clear()
