"""Samples as tensors: padded or packed rows, and where the trained tokens are in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.balance import plan_token_batches
from roll_learners.errors import LearnerError
from roll_learners.media import joined_inputs
from roll_learners.microbatch import plan_micro_batches
from roll_learners.packed_attention import PackedRows, group_rows
from roll_learners.rows import Row, lay_out, plan_rows
from roll_learners.sample import Sample
from roll_learners.segments import Segments, Totals

Column = Sequence[npt.NDArray[np.floating]] | npt.NDArray[np.floating]
"""A value for each sample (1-D array), or for each token of each sample (a list of arrays [N] or [N, K])."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """B rows on their way through a model, with N trained tokens of S samples.

    Packed, B is 1 and T the tokens of all rows back to back; else a row is padded on the right up to T.

    Attributes:
        members: int64[S], the samples' positions among all samples, in the order of `segments`.
        input_ids: int64[B, T].
        position_ids: int64[B, T], or None where every row is one sample.
        attention_mask: bool[B, 1, T, T], or None where every row is one sample: attention is causal, and
            nothing that is read stands after a pad.
        positions: int64[N], into the B * T outputs: the token before each trained token.
        targets: int64[N], the trained tokens.
        segments: Which sample each of the N belongs to.
        packed: How attention takes a packed row apart; None where rows are padded.
        media: The model's inputs for images and videos, or None.
        experts: int64[B * T, L, K] that tokens were sent to, -1 where it is not known; None where nothing is.
        rows: int64[B * T], the row of each token, or -1 for a pad.
    """

    members: npt.NDArray[np.int64]
    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    positions: Tensor
    targets: Tensor
    segments: Segments
    packed: PackedRows | None = None
    media: Mapping[str, Tensor] | None = None
    experts: Tensor | None = None
    rows: Tensor | None = None


def micro_batches(
    samples: Sequence[Sample], *, budget: int, sharing: int | None, device: str, packing: bool = False
) -> Iterator[MicroBatch]:
    """All samples that have a trained token, each in one micro-batch; the longest come first.

    Args:
        samples: Any samples.
        budget: Most tokens of a micro-batch: padded (rows x longest row), or of packed rows their sum.
        sharing: See `roll_learners.rows.plan_rows`.
        device: Where the tensors go.
        packing: Rows are packed, not padded.

    Raises:
        LearnerError: A sample alone is longer than the budget, or one that is to be packed has media.
    """
    plan = plan_token_batches if packing else plan_micro_batches
    every = plan_rows(samples, budget=budget, sharing=sharing)
    # A model counts the positions of media by rows, which may then hold one sample each alone.
    for seen in (False, True):
        rows = [row for row in every if (samples[row.members[0]].media is not None) == seen]
        lengths = np.array([row.length for row in rows], np.int64)
        for chosen in plan(lengths, budget=budget):
            yield collate(samples, [rows[i] for i in chosen], device=device, packing=packing)


def total_counts(samples: Sequence[Sample]) -> Totals:
    """The denominators of a loss over all trained tokens of these samples."""
    counts = [sample.response_tokens for sample in samples]
    return Totals(tokens=sum(counts), sequences=sum(count > 0 for count in counts))


def collate(
    samples: Sequence[Sample], rows: Sequence[Row], *, device: str, pad_to: int = 0, packing: bool = False
) -> MicroBatch:
    """The micro-batch of these rows.

    Args:
        samples: All samples, to which the rows' members point.
        rows: B rows.
        device: Where the tensors go.
        pad_to: Least T of padded rows; what is computed from the micro-batch is the same for all values.
        packing: Rows are packed, not padded.

    Raises:
        LearnerError: A sample that is to be packed has media.
    """
    laid = [lay_out(samples, row) for row in rows]
    lengths = np.array([len(row.input_ids) for row in laid], np.int64)
    if packing:
        starts, shape = np.cumsum(lengths) - lengths, (1, int(lengths.sum()))
    else:
        width = max(pad_to, int(lengths.max()))
        starts, shape = np.arange(len(laid)) * width, (len(laid), width)
    members = [member for row in rows for member in row.members]
    shared = any(len(row.members) > 1 for row in rows)

    def filled(parts: Sequence[npt.NDArray[np.int64]], pad: int) -> Tensor:
        """[B, T] of what the rows' tokens have."""
        flat = np.full(shape[0] * shape[1], pad, np.int64)
        for start, part in zip(starts, parts, strict=True):
            flat[start : start + len(part)] = part
        return torch.from_numpy(flat.reshape(shape)).to(device)

    masked = shared and not packing
    before = [start + row.before for start, row in zip(starts, laid, strict=True)]
    counts = torch.tensor([count for row in laid for count in row.counts])
    origins = [filled([row.origins[:, side] for row in laid], -1).flatten() for side in (0, 1)]
    return MicroBatch(
        members=np.array(members, np.int64),
        input_ids=filled([row.input_ids for row in laid], 0),
        position_ids=filled([row.position_ids for row in laid], 0) if shared or packing else None,
        attention_mask=_branch_mask(filled([row.branches for row in laid], -1)) if masked else None,
        positions=torch.from_numpy(np.concatenate(before)).to(device),
        targets=torch.from_numpy(np.concatenate([row.targets for row in laid])).to(device),
        segments=Segments.of_lengths(counts.to(device)),
        packed=group_rows(laid, device=device) if packing else None,
        media=_media(samples, members, shape, device, packing=packing),
        experts=_experts(samples, members, *origins),
        rows=filled([np.full(length, r) for r, length in enumerate(lengths)], -1).flatten(),
    )


def gather_column(
    name: str, column: Column, samples: Sequence[Sample], chosen: npt.NDArray[np.int64]
) -> npt.NDArray[np.floating]:
    """[N] or [N, K], the column at the trained tokens of the chosen samples; a value of a sample is repeated.

    Args:
        name: For messages.
        column: Of all samples.
        samples: All samples.
        chosen: int64[S], positions of those that are wanted, in order.

    Raises:
        LearnerError: The column does not fit the samples.
    """
    if isinstance(column, np.ndarray):
        counts = [samples[i].response_tokens for i in chosen]
        return np.repeat(column[chosen], counts)
    parts = []
    for i in chosen:
        if column[i].shape[:1] != samples[i].token_ids.shape:
            raise LearnerError(
                f"column {name!r} has {list(column[i].shape)} values for sample {i} "
                f"of {len(samples[i].token_ids)} tokens"
            )
        parts.append(column[i][samples[i].response_mask])
    return np.concatenate(parts)


def check_columns(columns: Mapping[str, Column], samples: Sequence[Sample]) -> None:
    """Raises LearnerError if a column has not one entry for each sample."""
    for name, column in columns.items():
        if len(column) != len(samples):
            raise LearnerError(f"column {name!r} has {len(column)} entries for {len(samples)} samples")


def scatter_tokens(
    flat: npt.NDArray[np.floating], samples: Sequence[Sample]
) -> list[npt.NDArray[np.floating]]:
    """The reverse of gathering: an array [N] or [N, K] for each sample, 0 where no token is trained.

    Args:
        flat: The values of all samples' trained tokens, back to back.
        samples: Those samples.
    """
    columns, first = [], 0
    for sample in samples:
        count = sample.response_tokens
        column = np.zeros((len(sample.token_ids), *flat.shape[1:]), flat.dtype)
        column[sample.response_mask] = flat[first : first + count]
        columns.append(column)
        first += count
    return columns


def _media(
    samples: Sequence[Sample], members: Sequence[int], shape: tuple[int, int], device: str, *, packing: bool
) -> dict[str, Tensor] | None:
    """The model's inputs for the media of rows that are one sample each."""
    found = [(r, media) for r, i in enumerate(members) if (media := samples[i].media) is not None]
    if not found:
        return None
    if packing:
        raise LearnerError(
            "packing: a sample has media, whose positions a model counts by rows: set packing to false"
        )
    kinds = np.zeros(shape, np.int64)
    for r, media in found:
        kinds[r, : len(media.token_kinds)] = media.token_kinds
    inputs = {name: torch.from_numpy(array) for name, array in joined_inputs([m for _, m in found]).items()}
    inputs["mm_token_type_ids"] = torch.from_numpy(kinds)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _experts(
    samples: Sequence[Sample], members: Sequence[int], owners: Tensor, places: Tensor
) -> Tensor | None:
    """The recorded experts of all tokens, whose samples and places in them are given, -1 for pads."""
    recorded = {i: each for i in members if (each := samples[i].routed_experts) is not None}
    if not recorded:
        return None
    shapes = {each.shape[1:] for each in recorded.values()}
    if len(shapes) > 1:
        raise LearnerError(
            f"routed_experts of different samples have [L, K] of {sorted(shapes)}: allowed is one"
        )
    experts = torch.full((len(owners), *shapes.pop()), -1)
    for i, each in recorded.items():
        known = ((owners == i) & (places < len(each))).cpu()
        experts[known] = torch.from_numpy(each.astype(np.int64))[places.cpu()[known]]
    return experts.to(owners.device)


def _branch_mask(branches: Tensor) -> Tensor:
    """bool[B, 1, T, T]: a token sees what precedes it in its own branch and in the prompt, branch 0.

    Pads are a branch of their own: they see the prompt, so that no token sees nothing at all, which
    would make its state NaN.
    """
    keys, queries = branches[:, None, None, :], branches[:, None, :, None]
    return ((keys == 0) | (keys == queries)).tril()
