"""Preferences for the task of `sort_letters.py`: two responses with the same drafts, one of which ends right.

A configuration names `write_files` as a preparation, in a directory of its own.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from roll_launch.tasks.sort_letters import (
    DRAFT_PROBABILITY,
    MOST_DRAFTS,
    answer,
    letter_sequences,
    partly_sorted,
    slip,
)


def write_files(directory: Path, *, seed: int, train: int = 8_192, heldout: int = 512) -> None:
    """Writes pairs.jsonl, labelled.jsonl, heldout_pairs.jsonl and heldout_labelled.jsonl into `directory`.

    Rows are `{"prompt": "hcfa=", "chosen": "chfa;acfh", "rejected": "chfa;acf"}`, and for KTO `{"prompt":
    "hcfa=", "response": "acfh", "label": true}`, of which half are right. Letter sets of the held-out rows
    are those that `sort_letters` holds out. The same arguments write the same bytes.

    Args:
        directory: An existing directory.
        seed: Any integer.
        train: Number of rows, >= 0.
        heldout: Number of rows, >= 0.

    Raises:
        ValueError: A number of rows is below 0.
    """
    if min(train, heldout) < 0:
        raise ValueError(f"got train={train}, heldout={heldout}; allowed are numbers of rows >= 0")
    for name, rows, held in (("", train, False), ("heldout_", heldout, True)):
        source = Random(f"preferences {name}{seed}")
        pairs = list(islice(_pairs(source, heldout=held), rows))
        _write(Path(directory) / f"{name}pairs.jsonl", pairs)
        _write(Path(directory) / f"{name}labelled.jsonl", [_labelled(source, pair) for pair in pairs])


def _pairs(source: Random, *, heldout: bool) -> Iterator[dict[str, object]]:
    for letters in letter_sequences(source, heldout=heldout):
        drafts, draft = "", letters
        for _ in range(MOST_DRAFTS):
            if source.random() >= DRAFT_PROBABILITY:
                break
            draft = partly_sorted(source, draft)
            drafts += f"{draft};"
        right = answer(letters)
        yield {"prompt": f"{letters}=", "chosen": drafts + right, "rejected": drafts + slip(source, right)}


def _labelled(source: Random, pair: dict[str, object]) -> dict[str, object]:
    right = source.random() < 0.5
    return {
        "prompt": pair["prompt"],
        "response": pair["chosen" if right else "rejected"],
        "label": right,
    }


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
