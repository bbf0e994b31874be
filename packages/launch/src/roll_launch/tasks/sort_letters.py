"""The task "sort these letters", with demonstrations good enough to start from and bad enough to improve on.

A prompt is 3 to 12 distinct letters of a..t and an equals sign, `hcfa=`. A response is some drafts, each
ended by a semicolon, then the answer: `acfh` or `chfa;cfha;acfh`. The answer is right when the text after
the last semicolon is the sorted letters (grader `exact` with `after: ";"`). Half of the demonstrated
answers carry one slip, so a policy that imitates them is right in about a third of its samples, and
reinforcement learning has two things to find: fewer slips, and that drafts earn nothing.

A configuration names `write_files` as a preparation; tests call the generators directly.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

LETTERS = "abcdefghijklmnopqrst"
SHORTEST, LONGEST = 3, 12
LENGTH_DECAY = 0.85
DRAFT_PROBABILITY = 0.45
MOST_DRAFTS = 5
SLIP_PROBABILITY = 0.5
HELDOUT_SHARE = 8
"""One letter set in this many is held out."""
VOCABULARY = ("<pad>", "<eos>", "<unk>", *LETTERS, "=", ";")
"""The 25 tokens by id: padding, end, anything foreign to the task, the 20 letters, the two signs. No BOS."""


def write_files(
    directory: Path, *, seed: int, demonstrations: int = 19_200, train: int = 4_096, heldout: int = 1_024
) -> None:
    """Writes demonstrations.jsonl, train.jsonl, heldout.jsonl and tokenizer/ into `directory`.

    Rows are `{"prompt": "hcfa=", "response": "acfh"}` in demonstrations and `{"prompt": "hcfa=",
    "reference": "acfh"}` in the other two. Letter sets of the held-out rows occur in neither other file;
    held-out prompts are all different. The same arguments write the same bytes.

    Args:
        directory: an existing directory.
        seed: any integer. Each file has a stream of its own, so the size of one does not change another.
        demonstrations: number of rows, >= 0.
        train: number of rows, >= 0.
        heldout: number of rows, 0 to 100,000 (there are not many more short prompts to hold out).

    Raises:
        ValueError: if a number of rows is out of its range.
    """
    if min(demonstrations, train, heldout) < 0 or heldout > 100_000:
        raise ValueError(
            f"got demonstrations={demonstrations}, train={train}, heldout={heldout}; "
            "allowed are numbers of rows >= 0, and at most 100000 held-out rows"
        )
    directory = Path(directory)
    source = Random(f"demonstrations {seed}")
    prompts = letter_sequences(source, heldout=False)
    shown = (
        {"prompt": f"{letters}=", "response": demonstration(source, letters)}
        for letters in islice(prompts, demonstrations)
    )
    _write_rows(directory / "demonstrations.jsonl", shown)
    prompts = letter_sequences(Random(f"train {seed}"), heldout=False)
    _write_rows(directory / "train.jsonl", map(_graded_row, islice(prompts, train)))
    prompts = _distinct(letter_sequences(Random(f"heldout {seed}"), heldout=True))
    _write_rows(directory / "heldout.jsonl", map(_graded_row, islice(prompts, heldout)))
    write_tokenizer(directory / "tokenizer")


def letter_sequences(source: Random, *, heldout: bool) -> Iterator[str]:
    """Endless prompts without their equals sign, such as `hcfa`, from one side of the split."""
    lengths = range(SHORTEST, LONGEST + 1)
    weights = [LENGTH_DECAY ** (length - SHORTEST) for length in lengths]
    while True:
        (length,) = source.choices(lengths, weights)
        letters = "".join(source.sample(LETTERS, length))
        if is_heldout(letters) == heldout:
            yield letters


def is_heldout(letters: str) -> bool:
    """Whether the set of `letters` is held out: a function of the set alone, not of its order or a seed."""
    digest = hashlib.sha256(answer(letters).encode()).digest()
    return digest[0] % HELDOUT_SHARE == 0


def answer(letters: str) -> str:
    """The right answer: the sorted letters."""
    return "".join(sorted(letters))


def demonstration(source: Random, letters: str) -> str:
    """A response to `letters`: 0 to 5 drafts, each sorted further, then an answer; half have a slip."""
    drafts: list[str] = []
    draft = letters
    while len(drafts) < MOST_DRAFTS and source.random() < DRAFT_PROBABILITY:
        draft = partly_sorted(source, draft)
        drafts.append(f"{draft};")
    final = answer(letters)
    if source.random() < SLIP_PROBABILITY:
        final = slip(source, final)
    return "".join(drafts) + final


def partly_sorted(source: Random, letters: str) -> str:
    """`letters` with what stands in some places, two at least and drawn at random, put in order."""
    places = sorted(source.sample(range(len(letters)), source.randint(2, len(letters))))
    draft = list(letters)
    for place, letter in zip(places, sorted(letters[place] for place in places), strict=True):
        draft[place] = letter
    return "".join(draft)


def slip(source: Random, letters: str) -> str:
    """`letters` with one slip: two neighbours swapped, one letter dropped, or one doubled."""
    kind = source.choice(("swap", "drop", "duplicate"))
    if kind == "swap":
        at = source.randrange(len(letters) - 1)
        return letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :]
    at = source.randrange(len(letters))
    return letters[:at] + (letters[at] * 2 if kind == "duplicate" else "") + letters[at + 1 :]


def write_tokenizer(directory: Path) -> None:
    """Writes a character tokenizer over `VOCABULARY` in Hugging Face form; it adds nothing to a text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, eos, unknown = VOCABULARY[:3]
    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    characters = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=unknown))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    characters.decoder = decoders.Fuse()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=characters, pad_token=pad, eos_token=eos, unk_token=unknown)
    tokenizer.save_pretrained(directory)


def _graded_row(letters: str) -> dict[str, str]:
    return {"prompt": f"{letters}=", "reference": answer(letters)}


def _distinct(prompts: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def _write_rows(path: Path, rows: Iterator[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
