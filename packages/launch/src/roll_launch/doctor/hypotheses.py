"""What may be wrong on one side, and what the plainest computation would say if it were."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from roll_rollout import Completion
from transformers import PreTrainedTokenizerFast

from roll_launch.doctor.subject import Gap
from roll_launch.doctor.witness import EVERYTHING, Kept, Witness

TEMPERATURES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 21))
FILTERS: tuple[Kept, ...] = (
    *((k, 1.0, 0.0) for k in (1, 5, 8, 10, 20, 40, 50, 64, 100)),
    *((0, p, 0.0) for p in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)),
    *((20, p, 0.0) for p in (0.8, 0.9, 0.95)),
    *((0, 1.0, share) for share in (0.01, 0.02, 0.05, 0.1)),
)


_OtherPrompt = Callable[[PreTrainedTokenizerFast, list[int]], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Something that may be wrong.

    Attributes:
        cause: "temperature", "sampling filters", "chat template" or "tokenisation".
        statement: What a side does, for people.
        expected: The log-probs of a completion's tokens if it does.
    """

    cause: str
    statement: str
    expected: Callable[[Completion], np.ndarray]


def gap_under(hypothesis: Hypothesis, said: Sequence[np.ndarray], completions: Sequence[Completion]) -> Gap:
    """Returns how far a side is from what it would say under a hypothesis."""
    return Gap.between(said, [hypothesis.expected(each) for each in completions])


def temperatures(witness: Witness, temperature: float) -> Iterator[Hypothesis]:
    """The side divides by another temperature."""
    for other in sorted({*TEMPERATURES, 1.0, temperature**2}):
        if other == temperature:
            continue

        def expected(each: Completion, other: float = other) -> np.ndarray:
            return witness.logprobs(each.prompt_ids, each.token_ids, temperature=other)

        what = "before temperature" if other == 1.0 else "as divided twice" if other == temperature**2 else ""
        note = f" ({what})" if what else ""
        yield Hypothesis(
            cause="temperature",
            statement=f"log-probs at temperature {other:g}{note}, the stage has {temperature:g}",
            expected=expected,
        )


def filters(witness: Witness, temperature: float, directory: Path) -> Iterator[Hypothesis]:
    """The side counts the tokens alone that top-k, top-p or min-p keep."""
    for kept in dict.fromkeys([*_generation_defaults(directory), *FILTERS]):

        def expected(each: Completion, kept: Kept = kept) -> np.ndarray:
            return witness.logprobs(each.prompt_ids, each.token_ids, temperature=temperature, kept=kept)

        named = zip(("top_k", "top_p", "min_p"), kept, EVERYTHING, strict=True)
        on = ", ".join(f"{name} {value:g}" for name, value, off in named if value != off)
        yield Hypothesis(
            cause="sampling filters",
            statement=f"log-probs of the set that {on} keeps, the stage keeps all tokens",
            expected=expected,
        )


def prompts(witness: Witness, temperature: float, tokenizer: PreTrainedTokenizerFast) -> Iterator[Hypothesis]:
    """The side reads another prompt: its text tokenised again, or with other parts of a template."""
    for cause, statement, other in _PROMPTS:

        def expected(each: Completion, other: _OtherPrompt = other) -> np.ndarray:
            read = other(tokenizer, each.prompt_ids.tolist()) or each.prompt_ids.tolist()
            return witness.logprobs(np.array(read), each.token_ids, temperature=temperature)

        yield Hypothesis(cause=cause, statement=statement, expected=expected)


def _again(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    return list(tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False))


def _again_with_special_tokens(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    return list(tokenizer.encode(tokenizer.decode(ids), add_special_tokens=True))


def _without_special_tokens(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [token for token in ids if token not in special]


def _one_more_beginning(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    first = tokenizer.bos_token_id
    return ids if first is None else [int(first), *ids]


def _without_beginning(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    return ids[1:] if ids[0] == tokenizer.bos_token_id else ids


def _one_more_end(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    last = tokenizer.eos_token_id
    return ids if last is None else [*ids, int(last)]


def _templated(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    if not tokenizer.chat_template:
        return ids
    said = tokenizer.decode(_without_special_tokens(tokenizer, ids))
    turns: list[dict[str, str]] = [{"role": "user", "content": str(said)}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(str(text), add_special_tokens=False))


def _without_generation_prompt(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    tail = _generation_prompt(tokenizer)
    return ids[: -len(tail)] if tail and ids[-len(tail) :] == tail and len(ids) > len(tail) else ids


def _generation_prompt(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    if not tokenizer.chat_template:
        return []
    turns: list[dict[str, str]] = [{"role": "user", "content": "a"}]
    closed = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    opened = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    return list(tokenizer.encode(opened.removeprefix(closed), add_special_tokens=False))


_PROMPTS: tuple[tuple[str, str, _OtherPrompt], ...] = (
    ("tokenisation", "the prompt's text tokenised again", _again),
    ("tokenisation", "the prompt's text tokenised again, with special tokens", _again_with_special_tokens),
    ("chat template", "one more beginning-of-sequence token before the prompt", _one_more_beginning),
    ("chat template", "the prompt without its beginning-of-sequence token", _without_beginning),
    ("chat template", "an end token after the prompt", _one_more_end),
    ("chat template", "the prompt without special tokens", _without_special_tokens),
    ("chat template", "the prompt as a user's turn in the chat template", _templated),
    ("chat template", "the prompt without the template's generation prompt", _without_generation_prompt),
)


def _generation_defaults(directory: Path) -> list[Kept]:
    """The filters of a model's generation_config.json, which servers apply by themselves."""
    try:
        found = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
        kept = (int(found.get("top_k") or 0), float(found.get("top_p") or 1), float(found.get("min_p") or 0))
    except (OSError, ValueError, TypeError, AttributeError):
        return []
    return [] if kept == EVERYTHING else [kept]
