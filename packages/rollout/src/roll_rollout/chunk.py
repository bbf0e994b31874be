"""A piece of a completion on its way, as streaming engines hand it out."""

from dataclasses import dataclass

import numpy as np

from roll_rollout.completion import Completion


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompletionChunk:
    """Some consecutive tokens of a completion, for example its last two:

        CompletionChunk(request_id="7/0", start=14, token_ids=[8, 2], logprobs=[-1.2, -0.4],
                        completion=<the whole>)

    Attributes:
        request_id: `GenerateRequest.id`.
        start: Index in the completion of the first token here.
        token_ids: int32[C].
        logprobs: float32[C], behavior log-probs.
        completion: The whole completion, in its last chunk only.
    """

    request_id: str
    start: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    completion: Completion | None


def last_chunk(completion: Completion, *, start: int) -> CompletionChunk:
    """Returns the chunk that ends a stream: the tokens of a completion from `start` on."""
    return CompletionChunk(
        request_id=completion.request_id,
        start=start,
        token_ids=completion.token_ids[start:],
        logprobs=completion.logprobs[start:],
        completion=completion,
    )
