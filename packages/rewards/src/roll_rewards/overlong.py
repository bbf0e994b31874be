"""Shaping by length: the soft penalty for responses that come close to the limit. Called by pipelines."""

import numpy as np

from roll_rewards.errors import RewardError


def overlong_penalty(lengths: np.ndarray, *, max_tokens: int, buffer_tokens: int) -> np.ndarray:
    """What to add to the rewards of B responses so that they end before they are cut off.

    With L = `max_tokens` and C = `buffer_tokens`: 0 up to L - C tokens, then linear down to -1 at L
    tokens, -1 beyond.

    Args:
        lengths: int[B], tokens of each response, at least 0.
        max_tokens: Length at which the whole penalty is due, above 0.
        buffer_tokens: Width of the linear part, 1..`max_tokens`.

    Returns:
        float64[B] in -1..0.

    Raises:
        RewardError: The limits do not fit each other, or a length is not a count.

    Source: DAPO (arXiv 2503.14476), equation 13.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise RewardError(
            f"overlong_penalty needs 1 <= buffer_tokens <= max_tokens, "
            f"got buffer_tokens={buffer_tokens}, max_tokens={max_tokens}"
        )
    counts = np.asarray(lengths)
    if counts.size and (not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0):
        raise RewardError(f"overlong_penalty needs counts as lengths, got {counts!r:.80} ({counts.dtype})")
    before_buffer = (max_tokens - buffer_tokens) - counts.astype(np.float64)
    return np.clip(before_buffer / buffer_tokens, -1.0, 0.0)
