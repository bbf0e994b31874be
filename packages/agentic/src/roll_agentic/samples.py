"""Training rows of an episode: by trajectory, by step, and by step with shared prefixes laid together.

Called by whoever turns episodes into training samples. In every row the context of a trained token is
the one it was sampled in, and every sampled token of an episode is trained in exactly one row.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from roll_agentic.errors import AgenticError
from roll_agentic.history import Branch, History
from roll_agentic.segment import FinishReason

RowKind: TypeAlias = Literal["trajectory", "step", "step_concatenated"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRow:
    """One training sample as flat arrays of N tokens with S trained turns.

    Example: two turns in one row have `spans=[[3, 5], [9, 12]]` and `turns=[0, 1]`.

    Attributes:
        token_ids: int32[N].
        response_mask: bool[N], True for the tokens to train.
        behavior_logprobs: float32[N], 0 where the mask is False.
        versions: int32[N], the policy version that sampled a trained token, -1 for others.
        spans: int32[S, 2], first token and end of each trained turn.
        turns: int32[S], the turns' numbers in the episode: index `Episode.rewards` with them.
        units: int32[S], which unit of credit each turn belongs to: all 0 in a row by trajectory,
            0, 1, ... in the others.
        branch: Number of the branch in the history.
        truncated: The last turn was cut off, so it has no end of its own.
    """

    token_ids: np.ndarray
    response_mask: np.ndarray
    behavior_logprobs: np.ndarray
    versions: np.ndarray
    spans: np.ndarray
    turns: np.ndarray
    units: np.ndarray
    branch: int
    truncated: bool


def episode_rows(
    history: History, kind: RowKind = "trajectory", *, train_inherited: bool = False
) -> tuple[EpisodeRow, ...]:
    """The rows of an episode in order; a branch in which nothing was sampled makes none.

    Args:
        history: Tokens of the episode.
        kind: `trajectory`: one row a branch, all its turns one unit of credit. `step`: one row a turn,
            its prompt as it was at sampling. `step_concatenated`: the turns of a branch in one row,
            each a unit of its own; the same tokens are trained in the same contexts as by step, but
            a shared prefix is computed once.
        train_inherited: Whether the inherited turns of a fork are trained in it as well, as hard credit
            for shared prefixes wants; else they are context, and trained in the episode they are from.

    Raises:
        AgenticError: There is no such kind.
    """
    if kind not in get_args(RowKind):
        raise AgenticError(f"rows are made by {', '.join(get_args(RowKind))}; got {kind!r}")
    rows: list[EpisodeRow] = []
    for index, branch in enumerate(history.branches):
        whole, finishes = _row(branch, index, by_step=kind != "trajectory", train_inherited=train_inherited)
        if len(whole.turns):
            rows.extend(_steps(whole, finishes) if kind == "step" else [whole])
    return tuple(rows)


def row_count(history: History, kind: RowKind = "trajectory") -> int:
    """How many rows of an episode have a token to train, without making them.

    Args:
        history: Tokens of the episode.
        kind: As for `episode_rows`.
    """
    rows = 0
    for branch in history.branches:
        start = sampled = 0
        for segment in branch.transcript.segments:
            sampled += segment.source == "sampled" and start >= branch.inherited and len(segment) > 0
            start += len(segment)
        rows += sampled if kind == "step" else sampled > 0
    return rows


def _row(
    branch: Branch, index: int, *, by_step: bool, train_inherited: bool
) -> tuple[EpisodeRow, list[FinishReason | None]]:
    """A branch as one row, and how each of its trained turns ended."""
    size = len(branch.transcript)
    mask, logprobs = np.zeros(size, bool), np.zeros(size, np.float32)
    versions = np.full(size, -1, np.int32)
    spans: list[tuple[int, int]] = []
    finishes: list[FinishReason | None] = []
    start = inherited = 0
    for segment in branch.transcript.segments:
        end = start + len(segment)
        is_sampled, is_old = segment.source == "sampled", start < branch.inherited
        inherited += is_sampled and is_old and train_inherited
        if is_sampled and (train_inherited or not is_old):
            mask[start:end], logprobs[start:end] = True, segment.logprobs
            versions[start:end] = np.repeat(*np.array(segment.versions or [(0, 0)], np.int64).T)
            spans.append((start, end))
            finishes.append(segment.finish_reason)
        start = end
    first = branch.first_turn - inherited
    turns = np.arange(first, first + len(spans), dtype=np.int32)
    row = EpisodeRow(
        token_ids=branch.transcript.token_ids,
        response_mask=mask,
        behavior_logprobs=logprobs,
        versions=versions,
        spans=np.array(spans, np.int32).reshape(-1, 2),
        turns=turns,
        units=np.arange(len(spans), dtype=np.int32) * by_step,
        branch=index,
        truncated=bool(finishes) and finishes[-1] != "stop",
    )
    return row, finishes


def _steps(whole: EpisodeRow, finishes: list[FinishReason | None]) -> list[EpisodeRow]:
    """A row for each turn: everything up to its end, only its own tokens trained."""
    rows = []
    for (start, end), turn, finish in zip(whole.spans, whole.turns, finishes, strict=True):
        mask = np.zeros(end, bool)
        mask[start:end] = True
        rows.append(
            EpisodeRow(
                token_ids=whole.token_ids[:end],
                response_mask=mask,
                behavior_logprobs=np.where(mask, whole.behavior_logprobs[:end], np.float32(0)),
                versions=np.where(mask, whole.versions[:end], np.int32(-1)),
                spans=np.array([[start, end]], np.int32),
                turns=np.array([turn], np.int32),
                units=np.zeros(1, np.int32),
                branch=whole.branch,
                truncated=finish != "stop",
            )
        )
    return rows
