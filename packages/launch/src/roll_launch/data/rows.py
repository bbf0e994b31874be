"""Rows of a data set: as a source gives them, and as pipelines use them."""

from collections.abc import Mapping
from dataclasses import dataclass

Message = Mapping[str, object]
"""One chat message: `{"role": "user", "content": "2+2?"}`, with whatever else its template reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """A row as its source gives it.

    RawRow(columns={"question": "2+2?", "answer": "4"}, origin="train.jsonl:12"); lines are counted from 1.
    """

    columns: Mapping[str, object]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A prompt with what belongs to it. Exactly one of `prompt` and `messages` is given.

    Row(prompt="hcfa=", messages=None, response=None, reference="acfh", columns={"level": 2},
    origin="train.jsonl:12")

    Attributes:
        prompt: text, encoded as it is.
        messages: a conversation, rendered by the tokenizer's chat template.
        response: what supervised training imitates.
        reference: what graders compare a response with.
        columns: every other column, passed to graders by name.
        origin: file and line, or source and number, counted from 1.
        domain: of a mixture, or "".
    """

    prompt: str | None
    messages: tuple[Message, ...] | None
    response: str | None
    reference: object
    columns: Mapping[str, object]
    origin: str
    domain: str = ""

    @property
    def text(self) -> str:
        """The prompt for people to read: the text, or one line `role: content` a message."""
        if self.messages is None:
            return self.prompt or ""
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.messages)
