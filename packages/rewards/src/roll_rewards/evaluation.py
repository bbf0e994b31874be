"""Responses in a JSON Lines file, graded: what `roll-grade FILE.jsonl` does, without the command line."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll_rewards.deadlines import GradeItem, grade_batch
from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.scores import Score, summarise_scores

RESPONSE_COLUMNS = (
    "response",
    "completion",
    "output",
    "prediction",
    "generation",
    "generated_text",
    "solution_str",
)
"""Where a response usually stands; the plural of each holds several."""

REFERENCE_COLUMNS = (
    "reference", "answer", "ground_truth", "gold", "label", "target", "solution", "expected", "final_answer",
    "reward_model.ground_truth",
)  # fmt: skip
"""Where a reference usually stands; a dot leads into a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One response of a file with its score.

    Example: `Graded(line=3, sample=0, score=Score(value=1.0))`.

    Attributes:
        line: Number of the line, from 1.
        sample: Which of the line's responses, from 0.
        score: Its score.
    """

    line: int
    sample: int
    score: Score


def read_items(
    path: Path, *, response: str | None = None, reference: str | None = None
) -> list[tuple[int, int, GradeItem]]:
    """Line, sample and item of every response in a file.

    Args:
        path: JSON Lines; empty lines are skipped. Responses are texts, lists of messages (the last one
            counts), or lists of such.
        response: Column of the responses; None finds it by its usual names.
        reference: Column of the references; None finds it, and None where there is none.

    Raises:
        RewardError: The file cannot be read, a line is no JSON object, or it has no response.
    """
    items = []
    for number, row in _rows(path):
        where = f"{path}:{number}"
        name = response or _found(row, RESPONSE_COLUMNS)
        if name is None or _column(row, name) is None:
            raise RewardError(
                f"{where}: no response in column {response or ', '.join(RESPONSE_COLUMNS)}; "
                f"it has {', '.join(row) or 'no columns'}"
            )
        target = reference or _found(row, REFERENCE_COLUMNS)
        columns = {key: value for key, value in row.items() if key not in (name, target, *_RESERVED)}
        for sample, text in enumerate(_texts(_column(row, name), where)):
            wanted = None if target is None else _column(row, target)
            items.append((number, sample, GradeItem(response=text, reference=wanted, columns=columns)))
    return items


def grade_items(
    grader: Grader,
    items: Sequence[tuple[int, int, GradeItem]],
    *,
    deadline_s: float,
    concurrency: int,
    on_score: Callable[[int, Graded], None] | None = None,
) -> list[Graded]:
    """Scores of `read_items`, in their order.

    Args:
        grader: Any grader.
        items: See `read_items`.
        deadline_s: Seconds for each response.
        concurrency: How many are graded at the same time.
        on_score: Called with the number of scores so far and the newest.
    """
    done = 0

    def note(index: int, score: Score) -> None:
        nonlocal done
        done += 1
        if on_score is not None:
            on_score(done, Graded(line=items[index][0], sample=items[index][1], score=score))

    scores = asyncio.run(
        grade_batch(
            grader,
            [item for _, _, item in items],
            deadline_s=deadline_s,
            concurrency=concurrency,
            on_score=note,
        )
    )
    pairs = zip(items, scores, strict=True)
    return [Graded(line=line, sample=sample, score=score) for (line, sample, _), score in pairs]


def summary(graded: Sequence[Graded]) -> dict[str, float]:
    """`summarise_scores`, and for lines with several responses `best` and `mean` over the lines.

    Returns:
        The metrics; with several responses a line also `rewards/best_of_n/mean` (the best verdict of each
        line) and `rewards/lines`.
    """
    metrics = summarise_scores(item.score for item in graded)
    lines: dict[int, list[float]] = {}
    for item in graded:
        if item.score.failure is None:
            lines.setdefault(item.line, []).append(item.score.value)
    metrics["rewards/lines"] = float(len({item.line for item in graded}))
    if lines and len(graded) > metrics["rewards/lines"]:
        metrics["rewards/best_of_n/mean"] = sum(map(max, lines.values())) / len(lines)
    return metrics


def as_row(graded: Graded) -> dict[str, object]:
    """A score as a row of the output file; a failure's value is null."""
    score = graded.score
    return {
        "line": graded.line,
        "sample": graded.sample,
        "score": None if score.failure is not None else score.value,
        "parts": dict(score.parts),
        "parsed": score.parsed,
        "timed_out": score.timed_out,
        "failure": None
        if score.failure is None
        else {"kind": score.failure.kind, "message": score.failure.message},
        "seconds": round(score.seconds, 6),
    }


_RESERVED = ("response", "reference", "grader", "deadline_s")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise RewardError(f"{path}:{number}: no JSON: {error}") from error
                if not isinstance(row, dict):
                    raise RewardError(f"{path}:{number}: a JSON object is expected, got {type(row).__name__}")
                yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise RewardError(f"cannot read {path}: {error}") from error


def _found(row: Mapping[str, object], names: Sequence[str]) -> str | None:
    candidates = [form for name in names for form in (name, f"{name}s")]
    return next((name for name in candidates if _column(row, name) is not None), None)


def _column(row: Mapping[str, object], name: str) -> object:
    value: object = row
    if name in row:
        return row[name]
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _texts(value: object, where: str) -> list[str]:
    """The texts of one column: one, or one of each sample."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return [str(value[-1].get("content", ""))]
    if isinstance(value, list) and value:
        return [text for item in value for text in _texts(item, where)]
    raise RewardError(f"{where}: a response must be a text or a list of texts, got {value!r:.80}")
