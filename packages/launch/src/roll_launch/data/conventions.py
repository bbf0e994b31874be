"""From the column names that data sets have to one typed row. Called for every row by `open_rows`.

Names given by the user win. Otherwise, with a column that is null counting as absent:

| part | columns | form |
|---|---|---|
| prompt | `prompt` | text, or a list of messages (TRL, verl) |
| | `messages` | `[{"role", "content"}]`, or that list as JSON text (ROLL) |
| | `conversations` | `[{"from", "value"}]` (ShareGPT) |
| | `instruction` | text, followed by an empty line and the `input` if there is one (Alpaca) |
| | `question` | text |
| | `text`, if there is none of these | a response to an empty prompt |
| response | `response`, `completion` | text, or a list of one assistant message |
| | `output`, beside `instruction` | text |
| reference | `reference`, `ground_truth`, `reward_model.ground_truth`, `answer`, `solution` | anything |

The user must say which is the prompt where two of the first five are there. Of responses and references
the first one found is used. All other columns are kept by name, and so is `reward_model`; but a column
called `response` or `reference` that is neither is left out, because graders have arguments of these names.
"""

import json
from collections.abc import Mapping

from roll_launch.config.schema.data import Columns
from roll_launch.data.errors import DataError
from roll_launch.data.rows import Message, RawRow, Row
from roll_launch.suggestion import did_you_mean

PROMPT_COLUMNS = ("prompt", "messages", "conversations", "instruction", "question")
RESPONSE_COLUMNS = ("response", "completion")
REFERENCE_COLUMNS = ("reference", "ground_truth", "reward_model.ground_truth", "answer", "solution")
GRADER_ARGUMENTS = ("self", "grader", "response", "reference", "deadline_s")
"""Names of a grading's own arguments: columns of these names are not passed to graders."""
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def normalise(raw: RawRow, names: Columns) -> Row:
    """The typed row of a raw one.

    Args:
        raw: the row as its source gave it.
        names: columns that the user named; a dot reaches into a mapping (`extra_info.answer`).

    Raises:
        DataError: if there is no prompt, or two that could be it, if a named column is missing, or if a
            value has the wrong type. The message begins with the row's origin.
    """
    prompt_column = _prompt_column(raw, names)
    used = {prompt_column}
    prompt: str | tuple[Message, ...]
    response_column: str | None
    if names.prompt is None and prompt_column == "text":
        prompt, response_column = "", "text"
    else:
        response_column = names.response or _first(raw, RESPONSE_COLUMNS)
        if names.prompt is None and prompt_column == "instruction":
            prompt = _instruction(raw)
            response_column = response_column or _first(raw, ("output",))
            used.add("input")
        else:
            prompt = _prompt(raw, prompt_column, conversation=prompt_column in (names.messages, "messages"))
    reference_column = names.reference or _first(raw, REFERENCE_COLUMNS)
    used |= {column for column in (response_column, reference_column) if column}
    return Row(
        prompt=prompt if isinstance(prompt, str) else None,
        messages=None if isinstance(prompt, str) else prompt,
        response=_response(raw, response_column) if response_column else None,
        reference=_value(raw, reference_column) if reference_column else None,
        columns={k: v for k, v in raw.columns.items() if k not in used and k not in GRADER_ARGUMENTS},
        origin=raw.origin,
    )


def _prompt_column(raw: RawRow, names: Columns) -> str:
    if names.prompt and names.messages:
        raise DataError(
            f"got prompt column {names.prompt!r} and messages column {names.messages!r}; allowed is one"
        )
    named = names.prompt or names.messages
    if named:
        return named
    found = [column for column in PROMPT_COLUMNS if raw.columns.get(column) is not None]
    if len(found) > 1:
        raise DataError(
            f"{raw.origin}: columns {' and '.join(map(repr, found))} could each be the prompt; "
            "say which with `prompt:` or `messages:`"
        )
    if found:
        return found[0]
    if raw.columns.get("text") is not None:
        return "text"
    raise DataError(
        f"{raw.origin}: no prompt; looked for {', '.join((*PROMPT_COLUMNS, 'text'))}, found {_listed(raw)}; "
        "name its column with `prompt:` or `messages:`"
    )


def _prompt(raw: RawRow, column: str, *, conversation: bool) -> str | tuple[Message, ...]:
    value = _value(raw, column)
    if column == "conversations":
        return _sharegpt(raw, value)
    if isinstance(value, str) and conversation:
        return _messages(raw, column, _json(value))
    if isinstance(value, str):
        return value
    return _messages(raw, column, value)


def _instruction(raw: RawRow) -> str:
    instruction = _text(raw, "instruction")
    return f"{instruction}\n\n{_text(raw, 'input')}" if raw.columns.get("input") else instruction


def _response(raw: RawRow, column: str) -> str:
    value = _value(raw, column)
    if isinstance(value, str):
        return value
    messages = _messages(raw, column, value)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        roles = ", ".join(str(message["role"]) for message in messages)
        raise DataError(
            f"{raw.origin}: column {column!r} has messages of {roles}; allowed is text or one assistant "
            "message (give a longer conversation as `messages`)"
        )
    return str(messages[0]["content"])


def _messages(raw: RawRow, column: str, value: object) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise DataError(
            f"{raw.origin}: column {column!r} is {_described(value)}; allowed is text or a list of messages "
            "with role and content, not empty"
        )
    return tuple(_message(raw, column, message) for message in value)


def _message(raw: RawRow, column: str, value: object) -> Message:
    if isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content")):
        return {str(key): item for key, item in value.items() if item is not None}
    raise DataError(
        f"{raw.origin}: column {column!r} has the message {_described(value)}; allowed is a mapping with "
        "role and content, both text"
    )


def _sharegpt(raw: RawRow, value: object) -> tuple[Message, ...]:
    turns = value if isinstance(value, list | tuple) else []
    messages = []
    for turn in turns:
        role = SHAREGPT_ROLES.get(str(turn.get("from"))) if isinstance(turn, Mapping) else None
        if role is None:
            raise DataError(
                f"{raw.origin}: column 'conversations' has the turn {_described(turn)}; allowed are mappings "
                f"with value, and from being one of {', '.join(SHAREGPT_ROLES)}"
            )
        messages.append({"role": role, "content": turn.get("value")})
    return _messages(raw, "conversations", messages)


def _text(raw: RawRow, column: str) -> str:
    value = raw.columns[column]
    if not isinstance(value, str):
        raise DataError(f"{raw.origin}: column {column!r} is {_described(value)}; allowed is text")
    return value


def _json(text: str) -> object:
    """The list that `text` holds as JSON, or `text` itself, which is then refused as messages."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _first(raw: RawRow, columns: tuple[str, ...]) -> str | None:
    return next((column for column in columns if _lookup(raw.columns, column) is not None), None)


def _value(raw: RawRow, column: str) -> object:
    value = _lookup(raw.columns, column)
    if value is None and column not in raw.columns:
        hint = did_you_mean(column, raw.columns)
        raise DataError(f"{raw.origin}: no column {column!r}; found {_listed(raw)}{hint}")
    return value


def _lookup(columns: Mapping[str, object], column: str) -> object:
    if column in columns:
        return columns[column]
    value: object = columns
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _listed(raw: RawRow) -> str:
    return ", ".join(map(repr, raw.columns)) or "no columns at all"


def _described(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
