"""Attention over packed rows: one row of tokens without padding, in which every row attends to itself alone.

All that a transformer does token by token runs over the tokens that exist. Attention takes them apart
again: rows of similar length are laid side by side, and each group runs through torch's fused kernels, causal
without a mask where its rows are single samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll_learners.errors import LearnerError
from roll_learners.microbatch import plan_micro_batches
from roll_learners.rows import LaidRow

PACKED = "roll_packed"
"""Name of the attention function that knows packed rows and computes as sdpa does on all others."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """R rows of a packed row that attend side by side.

    Attributes:
        places: int64[R * L], of the rows' tokens in the packed row; a row is filled up to L with its last.
        rows: R.
        mask: bool[R, 1, L, L], or None for causal attention.
    """

    places: Tensor
    rows: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PackedRows:
    """How T tokens are taken apart.

    Attributes:
        groups: Every row in one of them.
        back: int64[T], where each token is among the groups' tokens laid back to back.
    """

    groups: tuple[RowGroup, ...]
    back: Tensor


def group_rows(rows: Sequence[LaidRow], *, device: str) -> PackedRows:
    """The attention groups of rows that are packed in this order.

    Args:
        rows: As `roll_learners.rows.lay_out` makes them.
        device: Where the tensors go.
    """
    lengths = np.array([len(row.input_ids) for row in rows], np.int64)
    starts = np.cumsum(lengths) - lengths
    groups, back, base = [], np.zeros(int(lengths.sum()), np.int64), 0
    shared = np.array([len(row.counts) > 1 for row in rows])
    for masked in (False, True):
        kind = np.flatnonzero(shared == masked)
        if not len(kind):
            continue
        unbounded = int(lengths.max()) * len(rows)
        for chosen in plan_micro_batches(lengths[kind], budget=unbounded):
            members = kind[chosen]
            width = int(lengths[members].max())
            inside = np.minimum(np.arange(width), lengths[members][:, None] - 1)
            for r, i in enumerate(members.tolist()):
                own = slice(starts[i], starts[i] + lengths[i])
                back[own] = base + r * width + np.arange(lengths[i])
            base += len(members) * width
            mask = _branch_masks([rows[i] for i in members.tolist()], width) if masked else None
            groups.append(
                RowGroup(
                    places=torch.from_numpy((starts[members][:, None] + inside).ravel()).to(device),
                    rows=len(members),
                    mask=None if mask is None else torch.from_numpy(mask).to(device),
                )
            )
    return PackedRows(groups=tuple(groups), back=torch.from_numpy(back).to(device))


def _branch_masks(rows: Sequence[LaidRow], width: int) -> npt.NDArray[np.bool_]:
    """bool[R, 1, L, L]: a token sees what precedes it in its own branch and in the prompt, branch 0."""
    branches = np.full((len(rows), width), -1)
    for r, row in enumerate(rows):
        branches[r, : len(row.branches)] = row.branches
    keys, queries = branches[:, None, None, :], branches[:, None, :, None]
    mask: npt.NDArray[np.bool_] = np.tril((keys == 0) | (keys == queries))
    return mask


def _packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_rows: PackedRows | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query[1, H, T, D], key and value[1, H or fewer, T, D]; gives [1, T, H, D]."""
    if packed_rows is None:
        output: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)[0]
        return output, None
    unknown = [name for name in ("s_aux", "softcap", "sliding_window") if arguments.get(name) is not None]
    if unknown:
        raise LearnerError(f"packing: {type(module).__name__} attends with {unknown}, which packed rows lack")
    outputs = []
    for group in packed_rows.groups:
        q, k, v = (_apart(each, group) for each in (query, key, value))
        attended: Tensor = sdpa_attention_forward(module, q, k, v, group.mask, **arguments)[0]
        outputs.append(attended.flatten(0, 1))
    return torch.cat(outputs).index_select(0, packed_rows.back)[None], None


def _apart(packed: Tensor, group: RowGroup) -> Tensor:
    """[R, H, L, D] of packed[1, H, T, D]."""
    _, heads, _, size = packed.shape
    return packed[0].index_select(1, group.places).view(heads, group.rows, -1, size).transpose(0, 1)


AttentionInterface.register(PACKED, _packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
