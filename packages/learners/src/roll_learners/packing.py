"""Samples laid back to back in one row, without padding: the inputs of a model that runs packed sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roll_learners.sample import Sample

IGNORED = -100
"""The target of a position whose next token is not trained, as transformers and torch have it."""


class Packed(NamedTuple):
    """T tokens of S samples.

    Attributes:
        input_ids: int64[T].
        position_ids: int64[T], from 0 in each sample.
        boundaries: int32[S + 1], where samples begin, and T: "cu_seqlens" of variable-length attention.
        targets: int64[T], the next token of the same sample if it is trained, else -100; no further shift
            must be made.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    boundaries: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int64]

    def attention_mask(self) -> npt.NDArray[np.bool_]:
        """bool[T, T], block-diagonal and causal: a token sees what precedes it in its own sample."""
        owners = np.repeat(np.arange(len(self.boundaries) - 1), np.diff(self.boundaries))
        mask: npt.NDArray[np.bool_] = np.tril(owners[:, None] == owners[None, :])
        return mask


def pack(samples: Sequence[Sample]) -> Packed:
    """The samples in one row, in order.

    Args:
        samples: Any; those without a trained token are packed too.
    """
    lengths = [len(sample.token_ids) for sample in samples]
    targets = []
    for sample in samples:
        following = np.where(sample.response_mask, sample.token_ids, IGNORED).astype(np.int64)
        targets.append(np.append(following[1:], IGNORED)[: len(following)])
    empty = np.zeros(0, np.int64)
    return Packed(
        input_ids=np.concatenate([empty, *(sample.token_ids.astype(np.int64) for sample in samples)]),
        position_ids=np.concatenate([empty, *(np.arange(length) for length in lengths)]),
        boundaries=np.cumsum([0, *lengths]).astype(np.int32),
        targets=np.concatenate([empty, *targets]),
    )
