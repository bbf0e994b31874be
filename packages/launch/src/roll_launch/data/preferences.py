"""Rows of preferences: a prompt with a better and a worse response, or with one that is labelled.

| kind | columns |
|---|---|
| pairs | `prompt` or another prompt column, `chosen`, `rejected`: texts, or one assistant message (TRL) |
| | `chosen`, `rejected` alone: whole conversations that begin alike; what they share is the prompt (TRL) |
| labelled | a prompt, a response and `label`: true if it is desirable (TRL's KTO) |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_launch.config import DataConfig, PreferenceColumns
from roll_launch.config.schema.data import Columns
from roll_launch.data.conventions import PROMPT_COLUMNS, normalise
from roll_launch.data.encoding import PromptEncoder
from roll_launch.data.errors import DataError
from roll_launch.data.open_source import open_raw_rows
from roll_launch.data.rows import RawRow, Row

Encoded = tuple[np.ndarray, np.ndarray]
RESPONSE = "response"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow:
    """Responses to one prompt.

    Attributes:
        responses: Chosen and rejected, or a single one; each has the prompt, too.
        desirable: Of a single response, else None.
        origin: File and line.
    """

    responses: tuple[Row, ...]
    desirable: bool | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPreferences:
    """Token ids int32[N] and response masks bool[N] of rows.

    Attributes:
        rows: Of each row its responses, and whether a single one is desirable.
        origins: Of each row.
        dropped: Rows that were too long.
        empty: Rows with an empty response, or with two that are equal.
    """

    rows: tuple[tuple[tuple[Encoded, ...], bool | None], ...]
    origins: tuple[str, ...]
    dropped: int
    empty: int


def open_preferences(
    data: DataConfig, columns: PreferenceColumns, *, labelled: bool, limit: int | None = None
) -> list[PreferenceRow]:
    """The rows of a source, in its order.

    Args:
        data: The source.
        columns: What responses and labels are called.
        labelled: Whether rows have one response and a label, instead of two responses.
        limit: Use only so many, from the first.

    Raises:
        DataError: The source cannot be read or is empty, or a row has not the form; names row and columns.
    """
    names = data if isinstance(data, Columns) else Columns()
    raws = open_raw_rows(data)[:limit]
    if labelled:
        return [_labelled(raw, names, columns.label) for raw in raws]
    return [_pair(raw, names, columns) for raw in raws]


def encode_preferences(
    rows: Iterable[PreferenceRow],
    encoder: PromptEncoder,
    *,
    max_tokens: int,
    overlong: Literal["error", "drop"],
) -> EncodedPreferences:
    """Rows as samples to train on; a row of which one response is too long or empty is left out as a whole.

    Raises:
        DataError: A response is too long and `overlong` is "error", or no row is left.
    """
    rows = list(rows)
    encoded = iter(list(encoder.encode_each(each for row in rows for each in row.responses)))
    kept: list[tuple[tuple[Encoded, ...], bool | None]] = []
    origins: list[str] = []
    dropped = empty = 0
    for row in rows:
        found = [next(encoded) for _ in row.responses]
        responses = tuple(each for each in found if each is not None)
        longest = max((len(ids) for ids, _ in responses), default=0)
        if len(responses) < len(found) or _equal(responses):
            empty += 1
        elif longest <= max_tokens:
            kept.append((responses, row.desirable))
            origins.append(row.origin)
        elif overlong == "error":
            raise DataError(
                f"{row.origin}: prompt and response have {longest} tokens; allowed are {max_tokens}"
            )
        else:
            dropped += 1
    if not kept:
        raise DataError(f"no row is left: {dropped} were too long, {empty} had an empty or no other response")
    return EncodedPreferences(rows=tuple(kept), origins=tuple(origins), dropped=dropped, empty=empty)


def _pair(raw: RawRow, names: Columns, columns: PreferenceColumns) -> PreferenceRow:
    missing = [name for name in (columns.chosen, columns.rejected) if raw.columns.get(name) is None]
    if missing:
        raise DataError(
            f"{raw.origin}: no column {' and '.join(map(repr, missing))}; found "
            f"{', '.join(map(repr, raw.columns))}; name them with `columns:`"
        )
    chosen, rejected = raw.columns[columns.chosen], raw.columns[columns.rejected]
    others = {k: v for k, v in raw.columns.items() if k not in (columns.chosen, columns.rejected)}
    named = names.prompt or names.messages
    if named is None and all(others.get(column) is None for column in PROMPT_COLUMNS):
        others["prompt"], (chosen, rejected) = _shared_prompt(raw, chosen, rejected)
    rows = tuple(
        normalise(
            RawRow(columns={**others, RESPONSE: response}, origin=raw.origin),
            names.model_copy(update={"response": RESPONSE}),
        )
        for response in (chosen, rejected)
    )
    return PreferenceRow(responses=rows, desirable=None, origin=raw.origin)


def _shared_prompt(
    raw: RawRow, chosen: object, rejected: object
) -> tuple[list[object], tuple[object, object]]:
    """What two conversations begin with alike, and the rest of each."""
    if not isinstance(chosen, list | tuple) or not isinstance(rejected, list | tuple):
        raise DataError(
            f"{raw.origin}: no prompt beside a chosen and a rejected text; looked for "
            f"{', '.join(PROMPT_COLUMNS)}; name its column with `prompt:` or `messages:`"
        )
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if not shared or shared == len(chosen) or shared == len(rejected):
        raise DataError(
            f"{raw.origin}: the chosen and the rejected conversation share {shared} of {len(chosen)} and "
            f"{len(rejected)} messages; they must begin alike and end with a message of their own each"
        )
    return list(chosen[:shared]), (list(chosen[shared:]), list(rejected[shared:]))


def _labelled(raw: RawRow, names: Columns, column: str) -> PreferenceRow:
    label = raw.columns.get(column)
    if not isinstance(label, bool) and label not in (0, 1):
        raise DataError(
            f"{raw.origin}: column {column!r} is {label!r:.80}; allowed is true for a desirable response and "
            "false for another one (name the column with `columns.label`)"
        )
    row = normalise(raw, names)
    if row.response is None:
        raise DataError(f"{raw.origin}: no response; name its column with `response:`")
    return PreferenceRow(responses=(row,), desirable=bool(label), origin=raw.origin)


def _equal(responses: tuple[Encoded, ...]) -> bool:
    """Whether two responses are the same tokens: nothing can be learnt from them."""
    return len(responses) == 2 and np.array_equal(responses[0][0], responses[1][0])
