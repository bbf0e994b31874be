"""Chats as tokens, turn after turn, without ever tokenising a sampled turn again. Used by chat policies.

What follows a sampled turn is found by rendering a probe: the same new messages after a dummy assistant
turn, cut right after the end token of that turn. Everything there (separators, headers, the generation
prompt) is appended to the tokens so far, whatever the template does to older turns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from roll_agentic.errors import AgenticError, TranscriptError
from roll_agentic.tools.schema import ToolSchema

ChatMessage: TypeAlias = Mapping[str, object]

_REMEMBERED = 4096

Key = TypeVar("Key")
Value = TypeVar("Value")

_PROBE: tuple[ChatMessage, ...] = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


class ChatTokenizer(Protocol):
    """A chat template with its tokenizer."""

    @property
    def end_token_id(self) -> int:
        """The token that ends an assistant's turn."""
        ...

    def render(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[ToolSchema], generation_prompt: bool
    ) -> list[int]:
        """Token ids of a chat, with every special token of the template.

        Args:
            messages: In OpenAI's form.
            tools: Schemas to be named in the prompt.
            generation_prompt: Whether the beginning of an assistant's turn follows.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text by itself, without special tokens around it."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        ...


class HuggingFaceChat:
    """A tokenizer of transformers, given by the caller, as a `ChatTokenizer`.

    Args:
        tokenizer: Has `apply_chat_template`, `decode` and `eos_token_id`.
        end_token_id: The token that ends an assistant's turn; None for the tokenizer's `eos_token_id`.
        **options: Passed to the template, such as `enable_thinking=False`.

    Raises:
        AgenticError: There is no end token.
    """

    def __init__(self, tokenizer: Any, *, end_token_id: int | None = None, **options: object) -> None:
        self._tokenizer = tokenizer
        self._options: dict[str, Any] = options
        end = tokenizer.eos_token_id if end_token_id is None else end_token_id
        if end is None:
            raise AgenticError("the tokenizer has no eos_token_id; pass end_token_id")
        self._end_token_id = int(end)

    @property
    def end_token_id(self) -> int:
        """The token that ends an assistant's turn."""
        return self._end_token_id

    def render(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[ToolSchema], generation_prompt: bool
    ) -> list[int]:
        """Token ids of a chat."""
        ids = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=generation_prompt,
            tokenize=True,
            return_dict=False,
            **self._options,
        )
        return [int(token) for token in ids]

    def encode(self, text: str) -> list[int]:
        """Tokens of a text by itself, without special tokens around it."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))


class PlainText:
    """Texts one after the other as a `ChatTokenizer`, without a template.

    Each text is tokenised by itself, and each of the policy's is closed by the end token. Roles leave no
    trace, and tools are not named: whatever they need to say is in the observations.

    Args:
        tokenizer: A tokenizer of transformers: has `encode`, `decode` and `eos_token_id`.
        end_token_id: The token that ends a turn of the policy; None for the tokenizer's `eos_token_id`.

    Raises:
        AgenticError: There is no end token.
    """

    def __init__(self, tokenizer: Any, *, end_token_id: int | None = None) -> None:
        self._tokenizer = tokenizer
        end = tokenizer.eos_token_id if end_token_id is None else end_token_id
        if end is None:
            raise AgenticError("the tokenizer has no eos_token_id; pass end_token_id")
        self._end_token_id = int(end)
        # Observations and answers of small tasks come again and again.
        self._encoded: dict[str, list[int]] = {}
        self._decoded: dict[tuple[int, ...], str] = {}

    @property
    def end_token_id(self) -> int:
        """The token that ends a turn of the policy."""
        return self._end_token_id

    def render(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[ToolSchema], generation_prompt: bool
    ) -> list[int]:
        """Token ids of the texts, back to back."""
        ids: list[int] = []
        for message in messages:
            ids += self.encode(str(message.get("content", "")))
            if message.get("role") == "assistant":
                ids.append(self._end_token_id)
        return ids

    def encode(self, text: str) -> list[int]:
        """Tokens of a text by itself, without special tokens around it."""
        known = self._encoded.get(text)
        if known is None:
            known = [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]
            _remember(self._encoded, text, known)
        return list(known)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        key = tuple(token_ids)
        known = self._decoded.get(key)
        if known is None:
            known = str(self._tokenizer.decode(list(key), skip_special_tokens=False))
            _remember(self._decoded, key, known)
        return known


def following_ids(
    chat: ChatTokenizer,
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[ToolSchema] = (),
    ended: bool = True,
    generation_prompt: bool = True,
) -> list[int]:
    """The tokens that continue a transcript after a sampled turn.

    Args:
        chat: The template.
        messages: What comes next, such as the environment's answer; at least one.
        tools: The tools named at the beginning of the chat.
        ended: Whether the sampled turn ends with the end token; else it comes first here (a turn that
            was cut at a stop sequence).
        generation_prompt: Whether the beginning of the next assistant's turn follows.

    Raises:
        TranscriptError: The template does not close the assistant's turn with the end token, or the
            messages before it are rendered differently when others follow.
    """
    if not messages:
        raise TranscriptError("at least one message must follow a sampled turn")
    end = chat.end_token_id
    before = chat.render(_PROBE, tools=tools, generation_prompt=False)
    after = chat.render([*_PROBE, *messages], tools=tools, generation_prompt=generation_prompt)
    closings = before.count(end)
    opened = chat.render(_PROBE[:1], tools=tools, generation_prompt=False).count(end)
    if closings <= opened or after.count(end) < closings:
        raise TranscriptError(
            f"the template must close an assistant's turn with the end token {end}; "
            f"a chat of two turns has it {closings} times, of one turn {opened} times"
        )
    position = -1
    for _ in range(closings):
        position = after.index(end, position + 1)
    return after[position + 1 :] if ended else after[position:]


def first_ids(
    chat: ChatTokenizer, messages: Sequence[ChatMessage], *, tools: Sequence[ToolSchema] = ()
) -> list[int]:
    """The prompt of a chat's first sampled turn."""
    return chat.render(messages, tools=tools, generation_prompt=True)


def _remember(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep what was computed, within bounds."""
    if len(known) < _REMEMBERED:
        known[key] = value
