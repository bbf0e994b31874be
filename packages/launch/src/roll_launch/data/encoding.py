"""Rows to token ids and back, by the policy's own tokenizer. Called by the plan of a run, without torch.

Text prompts are encoded as they are. Conversations go through the chat template, which is the authority on
special tokens; a list in the column `tools` goes to it as well. Either way a beginning-of-sequence token
stands at most once at the front, and no end token follows a prompt.

Samples for supervised training are made of pieces that are encoded apart (prompt | response | what
follows), because that is how they meet in rollouts: the prompt's tokens are given and the response's tokens
are sampled after them.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from roll_launch.data.errors import DataError, EmptyResponseError
from roll_launch.data.rows import Row
from roll_launch.data.turns import conversation_pieces
from roll_launch.models import load_tokenizer

ROWS_TOGETHER = 1000
"""Rows whose texts are encoded in one call."""

PROBES = ("a", "0", "=", ".")
"""Texts to find out what a tokenizer puts around a text; the first that is any token at all is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompts:
    """Rows with the token ids of their prompts.

    EncodedPrompts(prompts=((row, int32[P]), ...), dropped=2); `dropped` rows had too long a prompt.
    """

    prompts: tuple[tuple[Row, np.ndarray], ...]
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSamples:
    """Token ids and response masks of rows to imitate.

    EncodedSamples(samples=((int32[N], bool[N]), ...), origins=("train.jsonl:1", ...), dropped=2, empty=0);
    `dropped` rows were too long, `empty` ones had no response.
    """

    samples: tuple[tuple[np.ndarray, np.ndarray], ...]
    origins: tuple[str, ...]
    dropped: int
    empty: int


class PromptEncoder:
    """Encodes prompts and supervised samples with the tokenizer in a directory."""

    def __init__(self, tokenizer_dir: Path) -> None:
        """Loads the tokenizer.

        Raises:
            ModelError: if there is none.
        """
        self._directory = Path(tokenizer_dir)
        self._tokenizer = load_tokenizer(self._directory)
        self._prefix = self._find_prefix()
        self._encoded: dict[str, list[int]] = {}

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end a response: the tokenizer's end token, then those of a generation_config.json."""
        own = self._tokenizer.eos_token_id
        listed = _generation_end_tokens(self._directory / "generation_config.json")
        return tuple(dict.fromkeys([*([] if own is None else [own]), *listed]))

    def encode(self, row: Row) -> np.ndarray:
        """The prompt's token ids, int32[P]; of a conversation, up to where the assistant's turn begins.

        Raises:
            DataError: if the prompt is empty, or a conversation cannot be rendered or already ends with an
                answer.
        """
        if row.messages is None:
            ids = self._single_bos([*self._prefix, *self._ids(row.prompt or "")])
        else:
            if row.messages[-1]["role"] == "assistant":
                raise DataError(
                    f"{row.origin}: the conversation ends with an assistant's turn; nothing is left to say"
                )
            ids = self._single_bos(self._ids(self._render(row, row.messages, generate=True)))
        if not ids:
            raise DataError(f"{row.origin}: the prompt has no tokens")
        return np.asarray(ids, dtype=np.int32)

    def encode_prompts(
        self, rows: Iterable[Row], *, max_prompt_tokens: int | None, overlong: Literal["error", "drop"]
    ) -> EncodedPrompts:
        """The prompts of `rows` in order, encoded; `overlong` ones are refused, or dropped and counted.

        Args:
            rows: rows of a data source.
            max_prompt_tokens: the longest allowed prompt; None allows any.
            overlong: what happens to a longer one.

        Raises:
            DataError: if a prompt is too long and `overlong` is "error", if none is left, or as `encode`
                does.
        """
        kept: list[tuple[Row, np.ndarray]] = []
        dropped = 0
        for row in self._encoded_together(rows):
            ids = self.encode(row)
            if _fits(row, len(ids), max_prompt_tokens, overlong, what="the prompt has"):
                kept.append((row, ids))
            else:
                dropped += 1
        if not kept:
            raise DataError(f"no prompt is left: {dropped} had more than {max_prompt_tokens} tokens")
        return EncodedPrompts(prompts=tuple(kept), dropped=dropped)

    def encode_supervised(
        self,
        rows: Iterable[Row],
        *,
        max_tokens: int | None = None,
        overlong: Literal["error", "drop"] = "error",
    ) -> EncodedSamples:
        """Samples of `rows` in order; those without a response are left out and counted.

        Args:
            rows: rows of a data source.
            max_tokens: the longest allowed sample; None allows any.
            overlong: what happens to a longer one.

        Raises:
            DataError: if a sample is too long and `overlong` is "error", if none is left, or as
                `supervised_tokens` does.
        """
        kept: list[tuple[np.ndarray, np.ndarray]] = []
        origins: list[str] = []
        dropped = empty = 0
        for row in self._encoded_together(rows):
            try:
                ids, mask = self.supervised_tokens(row)
            except EmptyResponseError:
                empty += 1
                continue
            if _fits(row, len(ids), max_tokens, overlong, what="prompt and response have"):
                kept.append((ids, mask))
                origins.append(row.origin)
            else:
                dropped += 1
        if not kept:
            raise DataError(f"no sample is left: {dropped} were too long, {empty} had no response")
        return EncodedSamples(samples=tuple(kept), origins=tuple(origins), dropped=dropped, empty=empty)

    def encode_each(self, rows: Iterable[Row]) -> Iterator[tuple[np.ndarray, np.ndarray] | None]:
        """The sample of each row in order, of any length; None of a row without a response.

        Raises:
            DataError: as `supervised_tokens` does.
        """
        for row in self._encoded_together(rows):
            try:
                yield self.supervised_tokens(row)
            except EmptyResponseError:
                yield None

    def supervised_tokens(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """The token ids and response mask of a sample to imitate: int32[N], bool[N].

        With a response: prompt, response and one end token; response and end token are trained. A
        conversation without a response: all turns; every assistant's turn is trained with what ends it, the
        last one with one end token. What a chat template inserts is never trained, and neither is the first
        token, which nothing precedes.

        Raises:
            EmptyResponseError: if the response, or every assistant's turn, is empty.
            DataError: if there is nothing to imitate, the tokenizer has no end token, or a conversation
                cannot be rendered in pieces.
        """
        if row.response is None and row.messages is None:
            raise DataError(f"{row.origin}: no response; name its column with `response:`")
        if row.response is not None:
            prompt = self.encode(row).tolist() if row.prompt != "" else list(self._prefix)
            pieces = [(prompt, False), (self._ids(row.response), True)]
        else:
            pieces = self._conversation(row)
        if not any(ids for ids, trained in pieces if trained):
            raise EmptyResponseError(f"{row.origin}: the response is empty")
        return self._ended(pieces, row)

    def decode(self, token_ids: Sequence[int] | np.ndarray) -> str:
        """The text of a response's token ids, special tokens left out."""
        ids = [int(token) for token in token_ids]
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _conversation(self, row: Row) -> list[tuple[list[int], bool]]:
        messages = row.messages or ()
        texts = conversation_pieces(
            messages,
            lambda turns, generate: self._render(row, turns, generate=generate),
            origin=row.origin,
        )
        pieces = [(self._ids(piece.text), piece.trained) for piece in texts]
        return [(self._single_bos(pieces[0][0]), pieces[0][1]), *pieces[1:]]

    def _ended(self, pieces: list[tuple[list[int], bool]], row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Joins pieces; after the last trained token there is one end token, trained, and nothing else."""
        end = self._tokenizer.eos_token_id
        if end is None:
            raise DataError(f"tokenizer {self._directory} has no end token, so a response could not be ended")
        ids = [token for piece, _ in pieces for token in piece]
        mask = [trained for piece, trained in pieces for _ in piece]
        last = len(mask) - mask[::-1].index(True)
        while last and mask[last - 1] and ids[last - 1] == end:
            last -= 1
        token_ids = np.asarray([*ids[:last], end], dtype=np.int32)
        response_mask = np.asarray([*mask[:last], True], dtype=np.bool_)
        response_mask[0] = False
        if not response_mask.any():
            raise EmptyResponseError(f"{row.origin}: one token that nothing precedes cannot be trained")
        return token_ids, response_mask

    def _single_bos(self, ids: list[int]) -> list[int]:
        """`ids` with one beginning-of-sequence token where they start with several."""
        bos = self._tokenizer.bos_token_id
        start = 0
        while bos is not None and ids[start : start + 2] == [bos, bos]:
            start += 1
        return ids[start:]

    def _ids(self, text: str) -> list[int]:
        known = self._encoded.get(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False) if known is None else known)

    def _encoded_together(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields each row after encoding its texts with many others, which is several times quicker."""
        rest = iter(rows)
        while chunk := list(itertools.islice(rest, ROWS_TOGETHER)):
            for row in chunk:
                _refuse_lone_surrogates(row)
            texts = list({text for row in chunk for text in (row.prompt, row.response) if text})
            if texts:
                encoded = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
                self._encoded = dict(zip(texts, encoded["input_ids"], strict=True))
            yield from chunk

    def _find_prefix(self) -> list[int]:
        """What the tokenizer puts before a text: usually nothing, or the beginning-of-sequence token."""
        for probe in PROBES:
            encoding = self._tokenizer(probe)
            sequences = encoding.sequence_ids(0)
            if 0 in sequences:
                return list(encoding["input_ids"][: sequences.index(0)])
        return []

    def _render(self, row: Row, messages: Sequence[Mapping[str, object]], *, generate: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise DataError(
                f"{row.origin}: a conversation, but tokenizer {self._directory} has no chat template; "
                "give the prompt as text"
            )
        render: Any = self._tokenizer.apply_chat_template
        turns = [dict(message) for message in messages]
        tools = row.columns.get("tools")
        schemas = tools if isinstance(tools, list) else None
        try:
            return str(render(turns, tools=schemas, tokenize=False, add_generation_prompt=generate))
        # The boundary to a chat template: it is a program, and raises what it likes.
        except Exception as error:
            raise DataError(
                f"{row.origin}: the chat template failed: {type(error).__name__}: {error}"
            ) from error


def _generation_end_tokens(path: Path) -> list[int]:
    if not path.is_file():
        return []
    listed = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    if listed is None:
        return []
    return [int(token) for token in (listed if isinstance(listed, list) else [listed])]


def _fits(row: Row, length: int, limit: int | None, overlong: Literal["error", "drop"], *, what: str) -> bool:
    """Whether a row of `length` tokens is kept; a longer one is dropped, or refused with a `DataError`."""
    if limit is None or length <= limit:
        return True
    if overlong == "error":
        raise DataError(f"{row.origin}: {what} {length} tokens; allowed are {limit}")
    return False


def _refuse_lone_surrogates(row: Row) -> None:
    """Half of a surrogate pair, which JSON can escape, is no text and cannot be encoded."""
    for text in (row.prompt, row.response):
        if text and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{row.origin}: not Unicode text: {error.reason} at character {error.start}"
                ) from error
