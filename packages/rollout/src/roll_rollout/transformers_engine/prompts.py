"""Prompts that are computed once for a group: keys, values and last logits, kept while anyone needs them."""

from collections import Counter
from dataclasses import dataclass

import torch

from roll_rollout.request import GenerateRequest

PromptKey = tuple[str | None, bytes]
"""What makes two prompts the same: the adapter that reads them, and their ids."""


def prompt_key(request: GenerateRequest) -> PromptKey:
    """Returns the key of all that a request has read before its next token."""
    return request.adapter, request.context_ids.tobytes()


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
        self._users: Counter[PromptKey] = Counter()
        self._states: dict[PromptKey, PromptState] = {}

    def acquire(self, key: PromptKey) -> None:
        """One more request has this prompt."""
        self._users[key] += 1

    def release(self, key: PromptKey) -> None:
        """One request less has this prompt."""
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            self._states.pop(key, None)

    def get(self, key: PromptKey) -> PromptState | None:
        """Returns the state under the current weights, or None."""
        return self._states.get(key)

    def put(self, key: PromptKey, state: PromptState) -> None:
        """Keeps a state until the last request with the prompt is released."""
        self._states[key] = state

    def drop_states(self) -> None:
        """Forgets all states: the weights changed."""
        self._states.clear()
