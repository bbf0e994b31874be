"""Samples as tensors: right-padded rows, and where the trained tokens are in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.errors import LearnerError
from roll_learners.microbatch import plan_micro_batches
from roll_learners.rows import Row, plan_rows
from roll_learners.sample import Sample
from roll_learners.segments import Segments, Totals

Column = Sequence[npt.NDArray[np.floating]] | npt.NDArray[np.floating]
"""A value for each sample (1-D array), or for each token of each sample (a list of arrays [N] or [N, K])."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """B rows on their way through a model, with N trained tokens of S samples.

    Attributes:
        members: int64[S], the samples' positions among all samples, in the order of `segments`.
        input_ids: int64[B, T], padded on the right.
        position_ids: int64[B, T], or None where every row is one sample.
        attention_mask: bool[B, 1, T, T], or None where every row is one sample: attention is causal, and
            nothing that is read stands after a pad.
        positions: int64[N], into the B * T outputs: the token before each trained token.
        targets: int64[N], the trained tokens.
        segments: Which sample each of the N belongs to.
    """

    members: npt.NDArray[np.int64]
    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    positions: Tensor
    targets: Tensor
    segments: Segments


def micro_batches(
    samples: Sequence[Sample], *, budget: int, sharing: int | None, device: str
) -> Iterator[MicroBatch]:
    """All samples that have a trained token, each in one micro-batch; the longest rows come first.

    Args:
        samples: Any samples.
        budget: Most padded tokens (rows x longest row) of a micro-batch.
        sharing: See `roll_learners.rows.plan_rows`.
        device: Where the tensors go.

    Raises:
        LearnerError: A sample alone is longer than the budget.
    """
    rows = plan_rows(samples, budget=budget, sharing=sharing)
    for chosen in plan_micro_batches(np.array([row.length for row in rows], np.int64), budget=budget):
        yield collate(samples, [rows[i] for i in chosen], device=device)


def total_counts(samples: Sequence[Sample]) -> Totals:
    """The denominators of a loss over all trained tokens of these samples."""
    counts = [sample.response_tokens for sample in samples]
    return Totals(tokens=sum(counts), sequences=sum(count > 0 for count in counts))


def collate(samples: Sequence[Sample], rows: Sequence[Row], *, device: str, pad_to: int = 0) -> MicroBatch:
    """The micro-batch of these rows.

    Args:
        samples: All samples, to which the rows' members point.
        rows: B rows.
        device: Where the tensors go.
        pad_to: Least T; what is computed from the micro-batch is the same for all values.
    """
    width = max(pad_to, *(row.length for row in rows))
    shape = (len(rows), width)
    input_ids, position_ids, branches = (
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, -1),
    )
    positions, targets = [], []
    for r, row in enumerate(rows):
        prompt = end = row.prompt
        input_ids[r, :prompt] = samples[row.members[0]].token_ids[:prompt]
        position_ids[r, :prompt] = np.arange(prompt)
        branches[r, :prompt] = 0
        for branch, member in enumerate(row.members, start=1):
            tokens, trained = samples[member].token_ids, np.flatnonzero(samples[member].response_mask)
            last = trained[-1]
            start, end = end, end + last - prompt
            input_ids[r, start:end] = tokens[prompt:last]
            position_ids[r, start:end] = np.arange(prompt, last)
            branches[r, start:end] = branch
            before = trained - 1
            positions.append(r * width + np.where(before < prompt, before, before - prompt + start))
            targets.append(tokens[trained])
    counts = torch.tensor([len(each) for each in targets])
    shared = any(len(row.members) > 1 for row in rows)
    return MicroBatch(
        members=np.array([member for row in rows for member in row.members], np.int64),
        input_ids=torch.from_numpy(input_ids).to(device),
        position_ids=torch.from_numpy(position_ids).to(device) if shared else None,
        attention_mask=_branch_mask(torch.from_numpy(branches).to(device)) if shared else None,
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
        targets=torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device),
        segments=Segments.of_lengths(counts.to(device)),
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


def _branch_mask(branches: Tensor) -> Tensor:
    """bool[B, 1, T, T]: a token sees what precedes it in its own branch and in the prompt, branch 0.

    Pads are a branch of their own: they see the prompt, so that no token sees nothing at all, which
    would make its state NaN.
    """
    keys, queries = branches[:, None, None, :], branches[:, None, :, None]
    return ((keys == 0) | (keys == queries)).tril()
