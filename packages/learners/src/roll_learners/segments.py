"""Response tokens as flat arrays with segment ids: the form every loss and advantage works on.

Padded (or packed) tensors are converted once, by selection, before anything is exponentiated, so
masked content cannot reach a value, a sum or a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Segments(NamedTuple):
    """Which of S sequences each of N flat tokens belongs to.

    Attributes:
        ids: int64[N], ascending, from 0 to S - 1.
        lengths: int64[S], tokens of each sequence; 0 for one without a token.
    """

    ids: Tensor
    lengths: Tensor

    @staticmethod
    def of_lengths(lengths: Tensor) -> Segments:
        """Segments of sequences laid back to back; lengths int64[S]."""
        positions = torch.arange(len(lengths), device=lengths.device)
        return Segments(ids=torch.repeat_interleave(positions, lengths), lengths=lengths)

    def sums(self, values: Tensor) -> Tensor:
        """[S], the sum of values[N] over each sequence."""
        return values.new_zeros(len(self.lengths)).index_add(0, self.ids, values)

    def means(self, values: Tensor) -> Tensor:
        """[S], the mean of values[N] over each sequence, 0 where it has no token."""
        return self.sums(values) / self.lengths.clamp(min=1)

    def spread(self, values: Tensor) -> Tensor:
        """[N], values[S] given to each token of its sequence."""
        return values[self.ids]


class Turns(NamedTuple):
    """Unbroken runs of trained tokens: what the policy wrote between two words of an environment.

    Attributes:
        tokens: Which of K turns each of the N tokens belongs to.
        sequences: Which of S sequences each of the K turns belongs to.
    """

    tokens: Segments
    sequences: Segments

    @staticmethod
    def of_starts(starts: Tensor, segments: Segments) -> Turns:
        """Turns that begin where starts, bool[N], is True; each sequence begins with one."""
        ids = starts.long().cumsum(0) - 1
        owners = segments.ids[starts]
        lengths = torch.bincount(ids, minlength=len(owners))
        counts = torch.bincount(owners, minlength=len(segments.lengths))
        return Turns(tokens=Segments(ids, lengths), sequences=Segments(owners, counts))

    @staticmethod
    def of_mask(mask: Tensor) -> Turns:
        """The runs of a padded mask, bool (or 0/1) [B, T], over its selected tokens."""
        chosen = mask.bool()
        before = torch.nn.functional.pad(chosen[:, :-1], (1, 0))
        return Turns.of_starts((chosen & ~before)[chosen], Segments.of_lengths(chosen.sum(1)))


class Totals(NamedTuple):
    """Denominators of one optimizer step, over all its micro-batches and ranks.

    Computed once a mini-batch and sent with each micro-batch, so that the sum of the micro-batches'
    losses, and its gradient, is the same for every split.

    Attributes:
        tokens: Trained tokens.
        sequences: Sequences with at least one trained token.
        ranks: Data-parallel ranks whose gradients are averaged, not summed: each multiplies its loss
            by this number, which the average takes out again.
    """

    tokens: int
    sequences: int
    ranks: int = 1

    @staticmethod
    def of_lengths(lengths: Tensor, *, ranks: int = 1) -> Totals:
        """Totals of sequences with these numbers of trained tokens, int64[S]."""
        return Totals(tokens=int(lengths.sum()), sequences=int((lengths > 0).sum()), ranks=ranks)


def response_tokens(mask: Tensor, *values: Tensor) -> tuple[Segments, *tuple[Tensor, ...]]:
    """The segments of a padded mask, and each of `values` as its selected flat tokens.

    Args:
        mask: bool (or 0/1) [B, T].
        *values: [B, T] each. Content outside the mask may be anything, also NaN and infinity.

    Returns:
        Segments of B sequences and one [N] tensor for each of `values`.
    """
    chosen = mask.bool()
    return Segments.of_lengths(chosen.sum(1)), *(value[chosen] for value in values)
