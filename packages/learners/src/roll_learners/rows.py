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

from roll_learners.sample import Sample

LONGEST_SHARED_ROW = 2048
"""A shared row of T tokens needs a mask of T x T."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Attributes:
    members: Positions of its samples, which begin with the same `prompt` tokens.
    prompt: Tokens before the first trained one.
    length: Tokens in all: the prompt, and of each member what lies between it and the last trained token.
    """

    members: tuple[int, ...]
    prompt: int
    length: int


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
    for i, sample in enumerate(samples):
        trained = np.flatnonzero(sample.response_mask)
        if len(trained):
            prompt = int(trained[0])
            row = Row(members=(i,), prompt=prompt, length=int(trained[-1]))
            families[sample.token_ids[:prompt].tobytes()].append(row)
    if sharing is None:
        return [row for family in families.values() for row in family]
    longest = min(budget, LONGEST_SHARED_ROW)
    return [row for family in families.values() for row in _shared(family, longest, 6 * sharing)]


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
