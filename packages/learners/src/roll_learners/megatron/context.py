"""Which tokens of a row a context-parallel process holds."""

from __future__ import annotations

import torch
from torch import Tensor


def context_places(length: int, rank: int, ranks: int) -> Tensor:
    """int64[T / ranks], the places of a process's tokens in a row of T.

    Of 2 * ranks equal parts it holds one from the front and its mirror image from the back, so that all have
    as much to attend to; this is also how Megatron-Core divides rotary positions.

    Args:
        length: T, a multiple of 2 * ranks unless ranks is 1.
        rank: Of the process, from 0.
        ranks: Context-parallel processes.
    """
    parts = torch.arange(length).chunk(2 * ranks)
    return torch.arange(length) if ranks == 1 else torch.cat([parts[rank], parts[2 * ranks - 1 - rank]])
