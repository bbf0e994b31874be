"""Cases of token ids and masks that have gone wrong elsewhere, against `PromptEncoder`.

Each case is a line of tests/data/cases/encoding.jsonl; its `op` names the check below that it is given to.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roll_launch.data import EmptyResponseError, PromptEncoder, Row
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cases" / "encoding.jsonl").read_text().splitlines()
]
TOKENS = ("<pad>", "<s>", "</s>", "<think>", "</think>", *"0123456789abcdefghijklmnopqrstuvwxyz:")
"""Ids 1 and 2 begin and end a sequence, 5 and up are characters."""
TEMPLATE = (
    "{bos}{{% for m in messages %}}{{{{ m.role }}}}:"
    "{{% if m.role == 'assistant' %}}{inserts}{{% endif %}}{{{{ m.content }}}}{eos}{{% endfor %}}"
    "{{% if add_generation_prompt %}}assistant:{{% endif %}}"
)


def encoder(
    directory: Path,
    *,
    adds_bos: bool = False,
    adds_eos: bool = False,
    pad: str = "<pad>",
    bos: str = "",
    inserts: str = "",
    eos: str = "</s>",
) -> PromptEncoder:
    tokenizer = Tokenizer(
        models.WordLevel({token: index for index, token in enumerate(TOKENS)}, unk_token="0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?think>|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{'<s> ' if adds_bos else ''}$A{' </s>' if adds_eos else ''}",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    build: Any = PreTrainedTokenizerFast
    fast = build(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token=pad, unk_token="0")
    fast.chat_template = TEMPLATE.format(bos=bos, inserts=inserts, eos=eos)
    fast.save_pretrained(directory)
    return PromptEncoder(directory)


def row(prompt: str | None, response: str | None, *turns: tuple[str, str]) -> Row:
    messages = tuple({"role": role, "content": content} for role, content in turns) or None
    return Row(
        prompt=prompt, messages=messages, response=response, reference=None, columns={}, origin="case:1"
    )


def text_of(ids: list[int]) -> str:
    return "".join(TOKENS[token] for token in ids)


def check_loss_mask(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    encode = encoder(directory, inserts=given["template_inserts"])
    ids, mask = encode.supervised_tokens(row(None, None, ("user", "hi"), ("assistant", given["assistant"])))
    inserted = np.isin(ids, [TOKENS.index("<think>"), TOKENS.index("</think>")])
    assert inserted.sum() == 2
    assert set(mask[inserted].tolist()) == {bool(expected["mask_on_inserted_tokens"])}
    said = len(given["assistant"]) + 1
    assert text_of(ids[-said:].tolist()) == given["assistant"] + "</s>"
    assert set(mask[-said:].tolist()) == {bool(expected["mask_on_code_and_end_token"])}


def check_encode_chat(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    bos = "<s>" if given["template_renders_bos"] else ""
    ids = encoder(directory, adds_bos=given["tokenizer_adds_bos"], bos=bos).encode(
        row(None, None, ("user", "hi"))
    )
    assert ids.tolist().count(given["bos"]) == expected["count_of_1"]


def check_encode_text(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    ids = encoder(directory, adds_bos=given["model_needs_bos"]).encode(row(given["text"], None))
    assert ids.tolist().count(given["bos"]) == expected["count_of_1"]


def check_encode_sft(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    encode = encoder(
        directory,
        adds_bos=True,
        bos="<s>",
        adds_eos=given["tokenizer_adds_eos"],
        eos="</s>" if given["template_renders_eos"] else "",
    )
    for sample in (
        row("hi", "yo"),
        row(None, "yo", ("user", "hi")),
        row(None, None, ("user", "hi"), ("assistant", "yo")),
    ):
        ids, mask = encode.supervised_tokens(sample)
        assert ids[mask].tolist().count(given["eos"]) == expected["trained_eos_per_row"]
        assert ids.tolist().count(1) == 1


def check_masks(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    encode = encoder(directory, pad="</s>")
    length, prompt_length = given["length"], given["prompt_length"]
    real = given["ids"][:length]
    ids, mask = encode.supervised_tokens(
        row(text_of(real[:prompt_length]), text_of(real[prompt_length:]).removesuffix("</s>"))
    )
    assert len(ids) == sum(expected["attention"])
    assert ids[mask].tolist() == expected["trained_targets"]


def check_sft_row(given: dict[str, Any], expected: dict[str, Any], directory: Path) -> None:
    encode = encoder(directory)
    if "text_ids" in given:
        ids, mask = encode.supervised_tokens(row("", text_of(given["text_ids"])))
        assert ids.tolist() == expected["ids"]
        assert mask[-1] == expected["eos_trained"]
        return
    assert not expected["kept"]
    with pytest.raises(EmptyResponseError):
        encode.supervised_tokens(row(text_of(given["prompt"]), text_of(given["response"])))


CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any], Path], None]] = {
    "loss_mask": check_loss_mask,
    "encode_chat": check_encode_chat,
    "encode_text": check_encode_text,
    "encode_sft": check_encode_sft,
    "masks": check_masks,
    "sft_row": check_sft_row,
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    CHECKS[case["input"]["op"]](case["input"], case["expected"], tmp_path)


def test_every_check_has_a_case() -> None:
    assert {case["input"]["op"] for case in CASES} == set(CHECKS)
