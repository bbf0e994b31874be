"""Shaping by length and correctness together: the cosine length reward. Called by `graders.length`."""

import numpy as np

from roll_rewards.errors import RewardError


def cosine_length_reward(
    lengths: np.ndarray,
    correct: np.ndarray,
    *,
    max_length: int,
    correct_short: float = 2.0,
    correct_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeded: float = -10.0,
) -> np.ndarray:
    """Rewards of B responses that go along half a cosine from their value at length 0 to that at the limit.

    With t = length / `max_length`: end + (start - end) / 2 * (1 + cos(pi * t)) below the limit, `exceeded`
    from the limit on. By default short right answers get most, and wrong answers lose less the longer they
    think.

    Args:
        lengths: int[B], lengths in any unit, at least 0.
        correct: bool[B].
        max_length: The limit in the same unit, above 0.
        correct_short: Of a right answer of length 0.
        correct_long: Of a right answer at the limit.
        wrong_short: Of a wrong answer of length 0.
        wrong_long: Of a wrong answer at the limit.
        exceeded: At the limit and beyond.

    Returns:
        float64[B].

    Raises:
        RewardError: The limit is not above 0, a length is below 0, or the two arrays differ in shape.

    Source: Demystifying long chain-of-thought reasoning (arXiv 2502.03373), section 4.2.
    """
    sizes, right = np.asarray(lengths, dtype=np.float64), np.asarray(correct, dtype=bool)
    if max_length <= 0 or sizes.shape != right.shape or (sizes.size and sizes.min() < 0):
        raise RewardError(
            "cosine_length_reward needs max_length above 0, lengths of at least 0 and as many verdicts, "
            f"got {max_length}, {sizes.size} lengths from {sizes.min(initial=0)} and {right.size} verdicts"
        )
    start = np.where(right, correct_short, wrong_short)
    end = np.where(right, correct_long, wrong_long)
    along = end + (start - end) / 2 * (1 + np.cos(np.pi * np.minimum(sizes / max_length, 1.0)))
    return np.where(sizes >= max_length, exceeded, along)
