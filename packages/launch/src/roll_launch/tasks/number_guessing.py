"""The task "find the secret number", with demonstrations to start from and to improve on.

It is the environment `number_guessing` of roll_agentic: the policy says a number, the answer is `<`, `>` or
`!`. A demonstrated guess is one of those that the answers so far leave possible with probability 0.7, else
any number. A policy that imitates them wins half of its games; halving what is left wins all of them.

A configuration names `write_files` as a preparation.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

CONSISTENT = 0.7
"""Probability that a demonstrated guess agrees with the answers before it."""
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
)
"""Texts one after the other, the policy's closed by the end token: form `raw` of episodes."""
SIGNS = ("?", "<", ">", "!")
SPECIAL = ("<pad>", "<eos>", "<unk>")


def write_files(
    directory: Path, *, seed: int, demonstrations: int = 6_000, numbers: int = 16, turns: int = 5
) -> None:
    """Writes demonstrations.jsonl and tokenizer/ into `directory`.

    Rows are `{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "8"}, ...]}`.
    The same arguments write the same bytes.

    Args:
        directory: an existing directory.
        seed: any integer.
        demonstrations: number of games, >= 0.
        numbers: the secret is 0 to numbers - 1, >= 1.
        turns: guesses of a game at most, >= 1.

    Raises:
        ValueError: if a number is out of its range.
    """
    if demonstrations < 0 or numbers < 1 or turns < 1:
        raise ValueError(
            f"got demonstrations={demonstrations}, numbers={numbers}, turns={turns}; "
            "allowed are at least 0, 1 and 1"
        )
    directory = Path(directory)
    source = Random(f"guesses {seed}")
    with (directory / "demonstrations.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for _ in range(demonstrations):
            messages = list(_game(source, numbers, turns))
            file.write(json.dumps({"messages": messages}) + "\n")
    write_tokenizer(directory / "tokenizer", numbers=numbers)


def _game(source: Random, numbers: int, turns: int) -> Iterator[dict[str, str]]:
    """A game that ends with the policy's last guess."""
    secret, low, high = source.randrange(numbers), 0, numbers - 1
    yield {"role": "user", "content": "?"}
    for turn in range(turns):
        consistent = source.random() < CONSISTENT
        guess = source.randint(low, high) if consistent else source.randrange(numbers)
        yield {"role": "assistant", "content": str(guess)}
        if guess == secret or turn == turns - 1:
            return
        yield {"role": "user", "content": "<" if secret < guess else ">"}
        low, high = (low, min(high, guess - 1)) if secret < guess else (max(low, guess + 1), high)


def write_tokenizer(directory: Path, *, numbers: int) -> None:
    """Writes a tokenizer with a token for each number and each sign, in Hugging Face form."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, eos, unknown = SPECIAL
    words = (*SPECIAL, *SIGNS, *(str(number) for number in range(numbers)))
    vocabulary = {token: index for index, token in enumerate(words)}
    tokens = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=unknown))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex(r"[0-9]+|[^0-9]"), behavior="isolated")
    tokens.decoder = decoders.Fuse()
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=tokens, pad_token=pad, eos_token=eos, unk_token=unknown)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
