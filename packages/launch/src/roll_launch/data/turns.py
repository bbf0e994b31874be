"""Which parts of a rendered conversation the assistant said. Called by `PromptEncoder`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from roll_launch.data.errors import DataError, EmptyResponseError
from roll_launch.data.rows import Message

Render = Callable[[Sequence[Message], bool], str]
"""The chat template: messages, and whether to open an assistant's turn after them."""


class Piece(NamedTuple):
    """A stretch of a rendered conversation: Piece(text="4<|im_end|>", trained=True)."""

    text: str
    trained: bool


def conversation_pieces(messages: Sequence[Message], render: Render, *, origin: str) -> list[Piece]:
    """The rendered conversation in pieces, every second one trained, up to the assistant's last word.

    Trained are each assistant's content and what the template ends it with (white space after that left
    out). Not trained is what the template inserts before the content, such as an empty thinking block.

    Args:
        messages: the conversation.
        render: the chat template.
        origin: for messages of errors.

    Raises:
        EmptyResponseError: if all the assistant's turns are empty.
        DataError: if there is no assistant's turn, or the template renders one otherwise than as a
            continuation of what the policy is shown when that turn is its to say.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise DataError(f"{origin}: no assistant's turn to imitate, and no response")
    said = [index for index in turns if str(messages[index]["content"]).strip()]
    if not said:
        raise EmptyResponseError(f"{origin}: the assistant's turns are empty")
    whole = render(messages, False)
    pieces: list[Piece] = []
    cursor = 0
    for index in said:
        start, end = _turn_span(messages, index, whole, render, origin)
        pieces += [Piece(whole[cursor:start], False), Piece(whole[start:end], True)]
        cursor = end
    return pieces


def _turn_span(
    messages: Sequence[Message], index: int, whole: str, render: Render, origin: str
) -> tuple[int, int]:
    """Where in `whole` the content of one assistant's turn starts, and where its end mark ends."""
    shown = render(messages[:index], True)
    alone = render(messages[: index + 1], False)
    content = str(messages[index]["content"])
    if content not in alone[len(shown) :]:
        content = content.strip()
    start, place = whole.find(content, len(shown)), alone.find(content, len(shown))
    continues = whole.startswith(shown) and alone.startswith(shown)
    if not continues or place < 0 or not 0 <= start <= place:
        raise DataError(
            f"{origin}: the chat template renders message {index + 1} (assistant) otherwise than what the "
            "policy would be shown and say; give the turns as rows of their own, each with a `response`"
        )
    mark = alone[place + len(content) :].rstrip()
    end = start + len(content)
    return start, end + len(mark) if whole.startswith(mark, end) else end
