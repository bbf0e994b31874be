"""Someone who wants the tokens of a request while it runs; called by `EngineCore` on its thread."""

from collections.abc import Callable

import numpy as np

from roll_rollout.chunk import CompletionChunk
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import longest_cut


class Watcher:
    """Turns new tokens of a request into chunks.

    Args:
        request: Whose tokens are watched.
        sink: Takes each chunk; called on the thread of the model.

    Attributes:
        held_back: Newest tokens that a stop string might yet cut, and that are not handed out.
        sent: Tokens that were handed out.
    """

    def __init__(self, request: GenerateRequest, sink: Callable[[CompletionChunk], None]) -> None:
        self.held_back = longest_cut(request.sampling.stop)
        self.sent = 0
        self._request_id = request.id
        self._sink = sink

    def take(self, token_ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Hands out the next tokens, int32[C] with float32[C] log-probs."""
        chunk = CompletionChunk(
            request_id=self._request_id,
            start=self.sent,
            token_ids=token_ids,
            logprobs=logprobs,
            completion=None,
        )
        self.sent += len(token_ids)
        self._sink(chunk)
