"""Which samples, and which tokens of a conversation, are trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

TrainedTurns = Literal["all", "last"]


def difficulty_mask(
    rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], *, low: float, high: float
) -> npt.NDArray[np.bool_]:
    """bool[S], samples whose group has a mean reward above `low` and below `high`.

    Args:
        rewards: [S], NaN for no verdict; those have no part in the mean.
        groups: int64[S].
        low: Exclusive.
        high: Exclusive.
    """
    _, index = np.unique(groups, return_inverse=True)
    known = ~np.isnan(rewards)
    counts = np.bincount(index, weights=known)
    means = np.bincount(index, weights=np.where(known, rewards, 0.0)) / np.maximum(counts, 1)
    kept: npt.NDArray[np.bool_] = ((means > low) & (means < high) & (counts > 0))[index]
    return kept


def error_length_mask(
    rewards: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], *, longest: int
) -> npt.NDArray[np.bool_]:
    """bool[S], samples with a reward above 0, and those without that are no longer than `longest`.

    Long wrong answers are masked because their many tokens are pushed down for one mistake.

    Args:
        rewards: [S].
        lengths: int64[S], trained tokens.
        longest: Of a wrong response, in tokens.
    """
    return (rewards > 0) | (lengths <= longest)


def conversation_mask(
    turns: Sequence[tuple[str, int]],
    *,
    train: TrainedTurns = "all",
    role: str = "assistant",
    left_out: Collection[int] = (),
) -> npt.NDArray[np.bool_]:
    """bool[N], the tokens of the turns that are trained.

    Args:
        turns: Role and number of tokens of each, in order.
        train: All turns of `role`, or the last of them alone.
        role: Whose words are learned.
        left_out: Positions in `turns` that are not trained: those that ended in a tool error, or that did
            nothing for the task.

    Source: the turn mask of ROME, arXiv 2512.24873, section 3.1.
    """
    own = [i for i, (speaker, _) in enumerate(turns) if speaker == role]
    chosen = set(own[-1:] if train == "last" else own) - set(left_out)
    return np.concatenate(
        [np.zeros(0, np.bool_), *(np.full(count, i in chosen) for i, (_, count) in enumerate(turns))]
    )
