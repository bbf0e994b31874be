"""Texts one after the other: the same tokens however they are asked for."""

import pytest
from roll_agentic import AgenticError, PlainText, first_ids, following_ids


class Letters:
    """A tokenizer of single characters; `.` is the end token."""

    eos_token_id: int | None = ord(".")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(each) for each in ids)


CHAT = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "8"},
    {"role": "user", "content": "<"},
]


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_only_the_turns_of_the_policy_are_closed() -> None:
    plain = PlainText(Letters())
    assert text(plain.render(CHAT, tools=(), generation_prompt=True)) == "?8.<"


def test_what_follows_a_turn_is_what_was_said_next() -> None:
    plain = PlainText(Letters())
    assert text(first_ids(plain, CHAT[:1])) == "?"
    assert text(following_ids(plain, CHAT[2:], ended=True)) == "<"
    assert text(following_ids(plain, CHAT[2:], ended=False)) == ".<"


def test_what_is_remembered_is_not_changed_by_those_who_were_given_it() -> None:
    plain = PlainText(Letters())
    plain.encode("ab").append(0)
    assert text(plain.encode("ab")) == "ab" and plain.decode([97, 98]) == plain.decode((97, 98)) == "ab"


def test_a_tokenizer_without_an_end_token_needs_one() -> None:
    class Endless(Letters):
        eos_token_id = None

    with pytest.raises(AgenticError, match="pass end_token_id"):
        PlainText(Endless())
    assert PlainText(Endless(), end_token_id=3).end_token_id == 3
