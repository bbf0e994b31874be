"""Pieces of tensors: cut out for one process, fused, taken apart and joined again. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roll_learners.megatron.rules import Fusion


def piece_bounds(size: int, rank: int, ranks: int, *, padded: bool = False) -> tuple[int, int]:
    """First and last (exclusive) index of a process's piece of a dimension.

    Args:
        size: Of the dimension.
        rank: Of the process, from 0.
        ranks: Processes.
        padded: The dimension is thought to be filled up to a multiple of `ranks`; the last pieces are then
            shorter, or empty.
    """
    width = -(-size // ranks) if padded else size // ranks
    return min(rank * width, size), min((rank + 1) * width, size)


def fused(pieces: Sequence[Tensor], fusion: Fusion, groups: int) -> Tensor:
    """What a process holds, made of its pieces.

    Args:
        pieces: [R, ...] each; for "heads" those of queries, keys and values.
        fusion: See `roll_learners.megatron.rules.Fusion`.
        groups: Key-value heads of the process.
    """
    if fusion == "none":
        return pieces[0]
    if fusion == "stacked":
        return torch.cat(list(pieces))
    by_group = [piece.reshape(groups, -1, *piece.shape[1:]) for piece in pieces]
    return torch.cat(by_group, dim=1).flatten(0, 1)


def parted(tensor: Tensor, fusion: Fusion, groups: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """The reverse of `fused`.

    Args:
        tensor: What a process holds.
        fusion: As it was fused.
        groups: Key-value heads of the process.
        sizes: Rows of each piece.
    """
    if fusion == "none":
        return (tensor,)
    if fusion == "stacked":
        return torch.split(tensor, list(sizes))
    by_group = tensor.reshape(groups, -1, *tensor.shape[1:])
    parts = torch.split(by_group, [size // groups for size in sizes], dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


def filled(piece: Tensor, rows: int) -> Tensor:
    """The piece with rows of zeros below, so that it has `rows`."""
    if len(piece) == rows:
        return piece
    return torch.cat([piece, piece.new_zeros(rows - len(piece), *piece.shape[1:])])
