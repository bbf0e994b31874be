from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_launch.data import DataError, EmptyResponseError
from roll_launch.data.rows import Message
from roll_launch.data.turns import conversation_pieces


def chatml(messages: Sequence[Message], generate: bool) -> str:
    text = "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in messages)
    return text + ("<|assistant|>\n" if generate else "")


def thinking(messages: Sequence[Message], generate: bool) -> str:
    """A template that opens the last turn of the assistant with an empty thought, as Qwen3's does."""
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    text = ""
    for index, message in enumerate(messages):
        thought = "<think></think>" if message["role"] == "assistant" and index > last_user else ""
        text += f"<|{message['role']}|>\n{thought}{message['content']}<|end|>\n"
    return text + ("<|assistant|>\n" if generate else "")


def conversation(*turns: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in turns]


def said(messages: list[Message], template: object = chatml) -> list[str]:
    pieces = conversation_pieces(messages, template, origin="rows.jsonl:3")  # type: ignore[arg-type]
    return [piece.text for piece in pieces if piece.trained]


def test_the_assistants_turns_are_trained_with_what_ends_them() -> None:
    messages = conversation(("user", "hi"), ("assistant", "yo"), ("user", "and?"), ("assistant", "so"))
    assert said(messages) == ["yo<|end|>", "so<|end|>"]


def test_what_follows_the_last_turn_is_left_out() -> None:
    messages = conversation(("user", "hi"), ("assistant", "yo"), ("user", "bye"))
    pieces = conversation_pieces(messages, chatml, origin="x:1")
    assert "".join(piece.text for piece in pieces) == "<|user|>\nhi<|end|>\n<|assistant|>\nyo<|end|>"


def test_an_inserted_thought_is_not_trained() -> None:
    messages = conversation(("user", "a"), ("assistant", "code"), ("user", "b"), ("assistant", "more"))
    pieces = conversation_pieces(messages, thinking, origin="x:1")
    assert [piece.text for piece in pieces if piece.trained] == ["code<|end|>", "more<|end|>"]
    assert pieces[2].text.endswith("<|assistant|>\n<think></think>")


def test_content_that_also_stands_in_headers_is_found_in_its_own_place() -> None:
    messages = conversation(("user", "assistant"), ("assistant", "a"), ("user", "a"), ("assistant", "user"))
    assert said(messages) == ["a<|end|>", "user<|end|>"]


def test_content_that_the_template_strips_is_found() -> None:
    def stripping(messages: Sequence[Message], generate: bool) -> str:
        return chatml([{**m, "content": str(m["content"]).strip()} for m in messages], generate)

    assert said(conversation(("user", "hi"), ("assistant", " yo\n")), stripping) == ["yo<|end|>"]


def test_empty_turns_are_context() -> None:
    messages = conversation(("user", "hi"), ("assistant", ""), ("user", "?"), ("assistant", "yo"))
    assert said(messages) == ["yo<|end|>"]


@pytest.mark.parametrize("content", ["<think>hm</think>yo", "yo"])
def test_a_template_that_rewrites_what_was_said_is_refused(content: str) -> None:
    def dropping(messages: Sequence[Message], generate: bool) -> str:
        text = "".join(f"<|{m['role']}|>{str(m['content']).rpartition('</think>')[2]}|" for m in messages)
        return text + ("<|assistant|><think>" if generate else "")

    with pytest.raises(DataError, match=r"rows\.jsonl:3: the chat template renders message 2 \(assistant\)"):
        said(conversation(("user", "hi"), ("assistant", content)), dropping)


def test_content_is_not_taken_from_a_later_turn() -> None:
    def forgetful(messages: Sequence[Message], generate: bool) -> str:
        kept = [
            m if index + 1 == len(messages) else {**m, "content": "-"} for index, m in enumerate(messages)
        ]
        return chatml(messages if generate else kept, generate)

    messages = conversation(("user", "-"), ("assistant", "code"), ("user", "code"))
    with pytest.raises(DataError, match="renders message 2"):
        said(messages, forgetful)


def test_a_conversation_needs_an_assistant_that_says_something() -> None:
    with pytest.raises(DataError, match="no assistant's turn"):
        said(conversation(("user", "hi")))
    with pytest.raises(EmptyResponseError, match="turns are empty"):
        said(conversation(("user", "hi"), ("assistant", "\n")))


contents = st.text(st.sampled_from("ab<|>/ \nassistant"), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), contents), min_size=1, max_size=6))
def test_pieces_are_the_rendered_conversation_and_train_what_was_said(turns: list[tuple[str, str]]) -> None:
    messages = conversation(*turns, ("assistant", "end"))
    pieces = conversation_pieces(messages, chatml, origin="x:1")
    assert "".join(piece.text for piece in pieces) == chatml(messages, False).rstrip("\n")
    assert [piece.text for piece in pieces if piece.trained] == [
        f"{m['content']}<|end|>" for m in messages if m["role"] == "assistant"
    ]
