"""Rows of model input: one sample each, or a prompt once and then the responses sampled from it.

The completions of a group begin with the same tokens. In a shared row these are computed once; each
response attends to the prompt and to itself, at the positions it has alone, so that its log-probs
and gradients are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roll_learners.sample import Sample

LONGEST_SHARED_ROW = 2048
"""A shared row of T tokens needs a mask of T x T."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Attributes:
    members: Positions of its samples, which begin with the same `prompt` tokens.
    prompt: Tokens before the first trained one.
    length: Tokens in all: the prompt, and of each member what lies between it and the last trained token
        (of one with media: all that follows).
    """

    members: tuple[int, ...]
    prompt: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidRow:
    """A row's T tokens as a model reads them.

    Attributes:
        input_ids: int64[T].
        position_ids: int64[T], of each token in its own sample.
        branches: int64[T], 0 in the prompt, then 1, 2, ... in the row's members: a token sees what precedes
            it in its own branch and in branch 0.
        before: int64[N], the places of the tokens that predict the N trained ones, member by member.
        targets: int64[N], the trained tokens.
        counts: N of each member.
        origins: int64[T, 2], the sample that each token was taken from, and its place there.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    branches: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    counts: tuple[int, ...]
    origins: npt.NDArray[np.int64]


def lay_out(samples: Sequence[Sample], row: Row) -> LaidRow:
    """The tokens of a row of these samples.

    Args:
        samples: All samples, to which the row's members point.
        row: One of `plan_rows`.
    """
    prompt = end = row.prompt
    ids = np.zeros(row.length, np.int64)
    positions, branches = np.zeros(row.length, np.int64), np.zeros(row.length, np.int64)
    owners = np.full(row.length, row.members[0], np.int64)
    ids[:prompt] = samples[row.members[0]].token_ids[:prompt]
    positions[:prompt] = np.arange(prompt)
    before, targets, counts = [], [], []
    for branch, member in enumerate(row.members, start=1):
        tokens, trained = samples[member].token_ids, np.flatnonzero(samples[member].response_mask)
        last = _fed_tokens(samples[member], trained)
        start, end = end, end + last - prompt
        ids[start:end] = tokens[prompt:last]
        positions[start:end] = np.arange(prompt, last)
        branches[start:end] = branch
        owners[start:end] = member
        previous = trained - 1
        before.append(np.where(previous < prompt, previous, previous - prompt + start))
        targets.append(tokens[trained])
        counts.append(len(trained))
    return LaidRow(
        input_ids=ids,
        position_ids=positions,
        branches=branches,
        before=np.concatenate(before),
        targets=np.concatenate(targets).astype(np.int64),
        counts=tuple(counts),
        origins=np.stack([owners, positions], axis=1),
    )


def plan_rows(samples: Sequence[Sample], *, budget: int, sharing: int | None) -> list[Row]:
    """The rows of all samples that have a trained token; each of these is in one row.

    Samples share a row where that costs less than a row each. A token costs 1, and each token it
    attends to 1/(6 sharing): about the ratio of attention to the rest of a transformer layer.

    Args:
        samples: Any samples.
        budget: Longest row that may be shared.
        sharing: The model's hidden size if it can run shared rows, None if it cannot.
    """
    families: defaultdict[bytes, list[Row]] = defaultdict(list)
    alone = []
    for i, sample in enumerate(samples):
        trained = np.flatnonzero(sample.response_mask)
        if not len(trained):
            continue
        prompt = int(trained[0])
        row = Row(members=(i,), prompt=prompt, length=_fed_tokens(sample, trained))
        # Equal tokens may stand for other pictures, and may have been sent to other experts.
        if sharing is None or sample.media is not None or sample.routed_experts is not None:
            alone.append(row)
        else:
            families[sample.token_ids[:prompt].tobytes()].append(row)
    if sharing is None:
        return alone
    longest = min(budget, LONGEST_SHARED_ROW)
    shared = [row for family in families.values() for row in _shared(family, longest, 6 * sharing)]
    return shared + alone


def _fed_tokens(sample: Sample, trained: npt.NDArray[np.int64]) -> int:
    """Those before the last trained one; of a sample with media all, since none of these may be left out."""
    return int(trained[-1]) if sample.media is None else len(sample.token_ids)


def _shared(family: list[Row], longest: int, tokens_per_layer: int) -> list[Row]:
    """Fills one row after the other, beginning with the longest responses."""
    rows: list[Row] = []
    for single in sorted(family, key=lambda row: -row.length):
        if rows:
            last = rows[-1]
            length = last.length + single.length - last.prompt
            # Alone, causal attention skips half of the pairs; under a mask none are skipped.
            alone = single.length + single.length**2 / (2 * tokens_per_layer)
            added = length - last.length + (length**2 - last.length**2) / tokens_per_layer
            if length <= longest and added < alone:
                rows[-1] = Row(members=last.members + single.members, prompt=last.prompt, length=length)
                continue
        rows.append(single)
    return rows
