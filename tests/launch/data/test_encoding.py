import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roll_launch.architectures import ModelError
from roll_launch.data import DataError, EmptyResponseError, PromptEncoder, Row

MakeTokenizer = Callable[..., Path]
MakeRow = Callable[..., Row]

BOS, EOS, IM_START, IM_END = 1, 2, 4, 5
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained_text(encoder: PromptEncoder, ids: np.ndarray, mask: np.ndarray) -> str:
    return encoder.decode(ids[mask])


def test_text_is_encoded_as_it_is(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer())
    ids = encoder.encode(row("hcfa="))
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert encoder.decode(ids) == "hcfa="


@pytest.mark.parametrize("text", ["ab", "<s>ab", "<s><s>ab"])
def test_text_has_exactly_one_bos(make_tokenizer: MakeTokenizer, row: MakeRow, text: str) -> None:
    ids = PromptEncoder(make_tokenizer(adds_bos=True)).encode(row(text))
    assert ids.tolist().count(BOS) == 1
    assert ids[0] == BOS


def test_no_bos_is_invented(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    assert BOS not in PromptEncoder(make_tokenizer(bos=True)).encode(row("ab"))


def test_a_prompt_does_not_end_with_the_end_token_that_the_tokenizer_adds(
    make_tokenizer: MakeTokenizer, row: MakeRow
) -> None:
    ids = PromptEncoder(make_tokenizer(adds_bos=True, adds_eos=True)).encode(row("ab"))
    assert ids[0] == BOS
    assert EOS not in ids


@pytest.mark.parametrize("template", ["<s>" + CHATML, CHATML, "<s><s>" + CHATML])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_conversation_has_the_bos_of_its_template(
    make_tokenizer: MakeTokenizer, row: MakeRow, template: str, adds_bos: bool
) -> None:
    encoder = PromptEncoder(make_tokenizer(bos=True, adds_bos=adds_bos, chat_template=template))
    ids = encoder.encode(row(messages=[("user", "hi")]))
    assert ids.tolist().count(BOS) == (1 if "<s>" in template else 0)
    assert encoder.decode(ids) == "user\nhi\nassistant\n"


def test_tools_reach_the_template(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    template = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{{ messages[0].content }}"
    encoder = PromptEncoder(make_tokenizer(chat_template=template))
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert (
        encoder.decode(encoder.encode(row(messages=[("user", "hi")], columns={"tools": tools}))) == "add;hi"
    )
    assert encoder.decode(encoder.encode(row(messages=[("user", "hi")], columns={"tools": "hammer"}))) == "hi"


def test_too_long_a_prompt_is_refused_with_origin_length_and_limit(
    make_tokenizer: MakeTokenizer, row: MakeRow
) -> None:
    encoder = PromptEncoder(make_tokenizer())
    rows = [row("ab"), row("abcdef", origin="rows.jsonl:2")]
    with pytest.raises(DataError, match=r"rows\.jsonl:2: the prompt has 6 tokens; allowed are 5"):
        encoder.encode_prompts(rows, max_prompt_tokens=5, overlong="error")


def test_too_long_prompts_are_dropped_and_counted(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer())
    rows = [row("abcdef"), row("abcde"), row("abcdefg")]
    encoded = encoder.encode_prompts(rows, max_prompt_tokens=5, overlong="drop")
    assert [(kept.prompt, len(ids)) for kept, ids in encoded.prompts] == [("abcde", 5)]
    assert encoded.dropped == 2
    with pytest.raises(DataError, match="no prompt is left: 3 had more than 2 tokens"):
        encoder.encode_prompts(rows, max_prompt_tokens=2, overlong="drop")


def test_any_length_is_kept_without_a_limit(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoded = PromptEncoder(make_tokenizer()).encode_prompts(
        [row("a" * 500)], max_prompt_tokens=None, overlong="error"
    )
    assert len(encoded.prompts) == 1


def test_a_prompt_without_tokens_is_refused(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the prompt has no tokens"):
        PromptEncoder(make_tokenizer()).encode(row(""))


def test_a_conversation_needs_a_chat_template(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    with pytest.raises(DataError, match="has no chat template"):
        PromptEncoder(make_tokenizer()).encode(row(messages=[("user", "hi")]))


def test_a_failing_chat_template_names_the_row(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer(chat_template="{{ raise_exception('user first') }}"))
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the chat template failed: .*user first"):
        encoder.encode(row(messages=[("system", "hi")]))


def test_a_finished_conversation_is_no_prompt(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer(chat_template=CHATML))
    with pytest.raises(DataError, match="ends with an assistant's turn"):
        encoder.encode(row(messages=[("user", "hi"), ("assistant", "yo")]))


def test_end_tokens_are_the_tokenizers_and_the_generation_configs(make_tokenizer: MakeTokenizer) -> None:
    directory = make_tokenizer()
    assert PromptEncoder(directory).end_token_ids == (EOS,)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [IM_END, EOS]}))
    assert PromptEncoder(directory).end_token_ids == (EOS, IM_END)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": IM_END}))
    assert PromptEncoder(directory).end_token_ids == (EOS, IM_END)
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert PromptEncoder(directory).end_token_ids == (EOS,)


@pytest.mark.parametrize("adds_eos", [True, False])
@pytest.mark.parametrize("response", ["acfh", "acfh</s>", "acfh</s></s>"])
def test_a_demonstration_trains_its_response_and_one_end_token(
    make_tokenizer: MakeTokenizer, row: MakeRow, response: str, adds_eos: bool
) -> None:
    encoder = PromptEncoder(make_tokenizer(adds_bos=True, adds_eos=adds_eos))
    ids, mask = encoder.supervised_tokens(row("hcfa=", response=response))
    assert ids.dtype == np.int32
    assert mask.dtype == np.bool_
    assert ids.tolist().count(EOS) == 1
    assert ids.tolist().count(BOS) == 1
    assert mask.tolist() == [False] * 6 + [True] * 5
    assert trained_text(encoder, ids, mask) == "acfh"
    assert ids[-1] == EOS


def test_prompt_and_response_are_encoded_apart(tmp_path: Path, row: MakeRow) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"</s>": 0, "a": 1, "b": 2, "ab": 3}
    merging = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=merging, eos_token="</s>").save_pretrained(tmp_path)
    encoder = PromptEncoder(tmp_path)
    assert encoder.encode(row("ab")).tolist() == [3]
    assert encoder.supervised_tokens(row("a", response="b"))[0].tolist() == [1, 2, 0]


def test_the_first_token_of_a_text_without_prompt_is_not_trained(
    make_tokenizer: MakeTokenizer, row: MakeRow
) -> None:
    _, mask = PromptEncoder(make_tokenizer()).supervised_tokens(row("", response="abc"))
    assert mask.tolist() == [False, True, True, True]
    _, mask = PromptEncoder(make_tokenizer(adds_bos=True)).supervised_tokens(row("", response="abc"))
    assert mask.tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("messages", [[("user", "hi")], [("system", "s"), ("user", "hi")]])
def test_a_response_to_a_conversation_follows_what_the_policy_is_shown(
    make_tokenizer: MakeTokenizer, row: MakeRow, messages: list[tuple[str, str]]
) -> None:
    encoder = PromptEncoder(make_tokenizer(eos="<|im_end|>", chat_template=CHATML))
    ids, mask = encoder.supervised_tokens(row(messages=messages, response="yo"))
    shown = encoder.encode(row(messages=messages))
    assert ids[: len(shown)].tolist() == shown.tolist()
    assert mask.tolist() == [False] * len(shown) + [True] * 3
    assert ids[-1] == IM_END


def test_every_turn_of_the_assistant_is_trained_with_its_end(
    make_tokenizer: MakeTokenizer, row: MakeRow
) -> None:
    encoder = PromptEncoder(make_tokenizer(eos="<|im_end|>", chat_template=CHATML))
    turns = [("user", "hi"), ("assistant", "yo"), ("user", "ok?"), ("assistant", "aye")]
    ids, mask = encoder.supervised_tokens(row(messages=turns))
    assert trained_text(encoder, ids, mask) == "yoaye"
    assert ids[mask].tolist().count(IM_END) == 2
    assert mask[-1] and ids[-1] == IM_END
    assert encoder.decode(ids) == "user\nhi\nassistant\nyo\nuser\nok?\nassistant\naye"


def test_a_template_without_end_token_gets_one(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    opening = "{% if add_generation_prompt %}assistant:{% endif %}"
    encoder = PromptEncoder(make_tokenizer(chat_template=template + opening))
    ids, mask = encoder.supervised_tokens(row(messages=[("user", "hi"), ("assistant", "yo")]))
    assert ids.tolist().count(EOS) == 1
    assert trained_text(encoder, ids, mask) == "yo"
    assert ids[-1] == EOS and mask[-1]


@pytest.mark.parametrize(
    ("text", "messages", "response"),
    [
        ("hcfa=", None, ""),
        (None, [("user", "hi")], ""),
        (None, [("user", "hi"), ("assistant", " ")], None),
    ],
)
def test_an_empty_response_is_told_apart(
    make_tokenizer: MakeTokenizer,
    row: MakeRow,
    text: str | None,
    messages: list[tuple[str, str]] | None,
    response: str | None,
) -> None:
    encoder = PromptEncoder(make_tokenizer(chat_template=CHATML))
    with pytest.raises(EmptyResponseError, match=r"rows\.jsonl:1: the .* empty"):
        encoder.supervised_tokens(row(text, messages=messages, response=response))


def test_there_must_be_something_to_imitate(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer(chat_template=CHATML))
    with pytest.raises(DataError, match=r"no response; name its column"):
        encoder.supervised_tokens(row("hcfa="))
    with pytest.raises(DataError, match="no assistant's turn"):
        encoder.supervised_tokens(row(messages=[("user", "hi")]))


def test_supervised_training_needs_an_end_token(make_tokenizer: MakeTokenizer, row: MakeRow) -> None:
    encoder = PromptEncoder(make_tokenizer(eos=None))
    with pytest.raises(DataError, match="has no end token"):
        encoder.supervised_tokens(row("a", response="b"))


def test_decoding_leaves_special_tokens_out(make_tokenizer: MakeTokenizer) -> None:
    encoder = PromptEncoder(make_tokenizer(adds_bos=True))
    assert encoder.decode([BOS, 6, 7, EOS]) == "ab"
    assert encoder.decode(np.array([6, 7], dtype=np.int32)) == "ab"


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer directory .*gone does not exist"):
        PromptEncoder(tmp_path / "gone")
