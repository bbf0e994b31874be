"""Chats continued token by token, with templates that keep or rewrite history."""

from types import SimpleNamespace

import pytest
from characters import END, Characters
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import (
    AgenticError,
    HuggingFaceChat,
    TranscriptError,
    drift_table,
    first_ids,
    following_ids,
    template_drift,
)

USER = {"role": "user", "content": "hi"}


def test_separator_after_the_sampled_end_token_is_not_lost() -> None:
    chat = Characters()
    start = first_ids(chat, [USER])
    said = [*chat.encode("yo"), END]
    answer = following_ids(chat, [{"role": "tool", "content": "5"}], generation_prompt=False)
    whole = [USER, {"role": "assistant", "content": "yo"}, {"role": "tool", "content": "5"}]
    assert [*start, *said, *answer] == chat.render(whole, tools=(), generation_prompt=False)


def test_turn_cut_at_a_stop_sequence_is_closed_first() -> None:
    chat = Characters()
    cut = following_ids(chat, [USER], ended=False)
    assert cut == [END, *following_ids(chat, [USER])]


@given(
    st.text(alphabet="ab\n <>", max_size=8), st.booleans(), st.booleans(), st.sampled_from(["", "\n", "--"])
)
def test_appending_equals_rendering_where_the_template_keeps_history(
    said: str, bos: bool, default: bool, separator: str
) -> None:
    chat = Characters(bos=bos, default_system="Be kind." if default else "", separator=separator)
    start = first_ids(chat, [USER])
    appended = [*start, *chat.encode(said), END, *following_ids(chat, [USER])]
    again = [USER, {"role": "assistant", "content": said}, USER]
    assert appended == chat.render(again, tools=(), generation_prompt=True)


def test_template_that_drops_thinking_is_continued_with_the_thinking_kept() -> None:
    chat = Characters(drop_thinking=True)
    new = following_ids(chat, [USER])
    assert new == following_ids(Characters(), [USER])


def test_template_without_end_token_is_refused() -> None:
    chat = Characters()
    chat.end_token_id = 999
    with pytest.raises(TranscriptError, match="must close an assistant's turn with the end token 999"):
        following_ids(chat, [USER])
    with pytest.raises(TranscriptError, match="at least one message"):
        following_ids(Characters(), [])


@pytest.mark.parametrize(
    ("chat", "kinds"),
    [
        (Characters(), {"none"}),
        (Characters(default_system="You are kind."), {"none"}),
        (Characters(drop_thinking=True), {"none", "thinking_dropped"}),
        (Characters(strip=True), {"none", "turn_rewritten"}),
    ],
    ids=["chatml", "default-system", "drops-thinking", "strips"],
)
def test_drift_report_names_what_a_template_does(chat: Characters, kinds: set[str]) -> None:
    drifts = template_drift(chat)
    assert {drift.kind for drift in drifts} == kinds
    assert {drift.append for drift in drifts} == {"ok"}
    assert len(drift_table(drifts).splitlines()) == len(drifts) + 1


def test_drift_is_located() -> None:
    drifts = {d.scenario: d for d in template_drift(Characters(drop_thinking=True)) if d.kind != "none"}
    assert set(drifts) == {"thinking", "thinking_tool"}
    assert drifts["thinking"].before.startswith("<think>\nEasy.")
    assert drifts["thinking"].after.startswith("4<end>")


def test_moved_system_prompt_and_retokenised_turns_are_told_apart() -> None:
    class Moves(Characters):
        def render(self, messages, *, tools, generation_prompt):
            ordered = sorted(messages, key=lambda m: m["role"] == "system") if len(messages) > 2 else messages
            return super().render(ordered, tools=tools, generation_prompt=generation_prompt)

    class Merges(Characters):
        """One token for "Hi" when it renders, two when it samples."""

        def render(self, messages, *, tools, generation_prompt):
            ids = super().render(messages, tools=tools, generation_prompt=generation_prompt)
            text = "".join(chr(token) for token in ids)
            return [ord(c) for c in text.replace("".join(chr(t) for t in self.encode("Hi")), chr(5000))]

        def decode(self, token_ids):
            return "".join(
                "Hi" if token == 5000 else super(Merges, self).decode([token]) for token in token_ids
            )

    assert {d.kind for d in template_drift(Moves()) if d.scenario == "system"} == {"prompt_rewritten"}
    assert {d.kind for d in template_drift(Merges()) if d.scenario == "plain"} == {"retokenised"}


def test_template_that_refuses_a_role_is_reported() -> None:
    class NoTools(Characters):
        def render(self, messages, *, tools, generation_prompt):
            if tools:
                raise ValueError("no tools here")
            return super().render(messages, tools=tools, generation_prompt=generation_prompt)

    failed = [d for d in template_drift(NoTools()) if d.append != "ok"]
    assert {d.scenario for d in failed} == {"tool", "thinking_tool"}
    assert failed[0].append == "ValueError: no tools here"


def test_transformers_tokenizer_is_adapted() -> None:
    class Tokenizer:
        eos_token_id = 7

        def apply_chat_template(self, messages, **options):
            self.options = options
            return [len(messages), 7]

        def encode(self, text, *, add_special_tokens):
            assert not add_special_tokens
            return [1, 2]

        def decode(self, ids, *, skip_special_tokens):
            assert not skip_special_tokens
            return str(ids)

    tokenizer = Tokenizer()
    chat = HuggingFaceChat(tokenizer, enable_thinking=False)
    assert chat.render([USER], tools=(), generation_prompt=True) == [1, 7]
    assert tokenizer.options == {
        "tools": None,
        "add_generation_prompt": True,
        "tokenize": True,
        "return_dict": False,
        "enable_thinking": False,
    }
    assert (chat.encode("a"), chat.decode([3]), chat.end_token_id) == ([1, 2], "[3]", 7)
    with pytest.raises(AgenticError, match="no eos_token_id"):
        HuggingFaceChat(SimpleNamespace(eos_token_id=None))
