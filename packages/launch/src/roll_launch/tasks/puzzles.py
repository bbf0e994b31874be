"""Puzzles of reasoning-gym as short conversations, split by content. A configuration names `rows` as data.

    data:
      source: python
      callable: roll_launch.tasks.puzzles:rows
      arguments: {task: basic_arithmetic, split: train, size: 2048, seed: 0, options: {max_terms: 3}}

Unlike the source `reasoning_gym`, a row has a response to imitate, and the split is part of it: puzzle i of
seed s is puzzle i - 1 of seed s + 1, so that different seeds alone do not keep puzzles apart.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal

from roll_launch.data.errors import DataError
from roll_launch.data.readers import read_reasoning_gym

HELDOUT_SHARE = 8
"""One puzzle in this many is held out."""
MOST_DRAWS = 100
"""A task that has not given enough different puzzles after this many draws for each has too few."""
SYSTEM = ""
"""Empty, but there: where a conversation begins with no system message, chat templates put their own."""


def rows(
    *,
    task: str,
    split: Literal["train", "heldout"],
    size: int,
    seed: int,
    options: Mapping[str, object] | None = None,
    system: str = SYSTEM,
) -> Iterator[dict[str, object]]:
    """Yields `size` different puzzles of one side of the split.

    {"messages": [{"role": "system", "content": "Give the result."}, {"role": "user", "content": "7 - 12 ="}],
    "response": "-5", "reference": "-5", "entry": {"question": ..., "answer": ..., "metadata": ...}}

    Args:
        task: Name of a reasoning-gym data set.
        split: `train` or `heldout`. The two have no question in common, whatever seeds and options.
        size: Number of puzzles, >= 1.
        seed: Of the generator, >= 0. Seeds of data sets that should differ are best far apart.
        options: Of the task, such as `{"max_terms": 3}`.
        system: The system message; a chat template may put its own where there is none.

    Raises:
        DataError: The split is neither of the two, reasoning-gym is not installed, refuses the task or its
            options, or has too few different puzzles.
    """
    if split not in ("train", "heldout"):
        raise DataError(f"got split {split!r} of puzzles; allowed are 'train' and 'heldout'")
    given: set[str] = set()
    draws = max(size, 1) * MOST_DRAWS
    for raw in read_reasoning_gym(task, draws, seed, options or {}):
        question, answer = str(raw.columns["prompt"]), str(raw.columns["reference"])
        if question in given or is_heldout(question) != (split == "heldout"):
            continue
        given.add(question)
        yield {
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "response": answer,
            "reference": answer,
            "entry": raw.columns["entry"],
        }
        if len(given) == size:
            return
    raise DataError(
        f"reasoning-gym's task {task!r} with {dict(options or {})} has {len(given)} different puzzles in "
        f"{draws} draws for the split {split!r}; asked for are {size}"
    )


def is_heldout(question: str) -> bool:
    """Whether a puzzle is held out: a function of its question alone."""
    return hashlib.sha256(question.encode()).digest()[0] % HELDOUT_SHARE == 0
