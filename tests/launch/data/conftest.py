"""Small tokenizers and rows for the tests of data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from roll_launch.data import Row
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 \n?!.,:;=+<>/|_-"


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[..., Path]:
    """Writes a character tokenizer: ids 0..5 are `SPECIAL`, then `CHARACTERS`."""

    def make(
        *,
        bos: bool = False,
        adds_bos: bool = False,
        adds_eos: bool = False,
        eos: str | None = "</s>",
        pad: str = "<pad>",
        chat_template: str | None = None,
    ) -> Path:
        vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
        tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        if adds_bos or adds_eos:
            single = f"{'<s> ' if adds_bos else ''}$A{' </s>' if adds_eos else ''}"
            tokenizer.post_processor = processors.TemplateProcessing(
                single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
            )
        build: Any = PreTrainedTokenizerFast
        fast = build(
            tokenizer_object=tokenizer,
            pad_token=pad,
            eos_token=eos,
            unk_token="<unk>",
            bos_token="<s>" if bos or adds_bos else None,
            additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        )
        fast.chat_template = chat_template
        directory = tmp_path / "tokenizer"
        fast.save_pretrained(directory)
        return directory

    return make


@pytest.fixture
def row() -> Callable[..., Row]:
    """Makes a row from what a test is about."""

    def make(
        prompt: str | None = None,
        *,
        messages: list[tuple[str, str]] | None = None,
        response: str | None = None,
        columns: Mapping[str, object] | None = None,
        origin: str = "rows.jsonl:1",
    ) -> Row:
        turns = None if messages is None else tuple({"role": r, "content": c} for r, c in messages)
        return Row(
            prompt=prompt,
            messages=turns,
            response=response,
            reference=None,
            columns=columns or {},
            origin=origin,
        )

    return make
