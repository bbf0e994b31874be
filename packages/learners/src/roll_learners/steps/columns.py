"""Numbers of trained tokens, between arrays of samples and flat tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.sample import Sample
from roll_learners.segments import Segments, Turns

TokenColumn = list[npt.NDArray[np.floating]]


def flat(column: TokenColumn, samples: Sequence[Sample]) -> Tensor:
    """float64[N], the column at the trained tokens of all samples, back to back."""
    parts = [each[sample.response_mask] for each, sample in zip(column, samples, strict=True)]
    return torch.from_numpy(np.concatenate(parts)).double()


def segments_of(samples: Sequence[Sample]) -> Segments:
    """Of the samples' trained tokens."""
    return Segments.of_lengths(torch.tensor([sample.response_tokens for sample in samples]))


def turns_of(samples: Sequence[Sample], segments: Segments) -> Turns:
    """Of the samples' trained tokens."""
    starts = [sample.turn_starts[sample.response_mask] for sample in samples]
    return Turns.of_starts(torch.from_numpy(np.concatenate(starts)), segments)
