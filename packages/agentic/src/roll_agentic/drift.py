"""Where a chat template would change tokens that were already read or sampled. Used by `roll-env drift`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from roll_agentic.chat import ChatMessage, ChatTokenizer, following_ids
from roll_agentic.errors import TranscriptError
from roll_agentic.tools.schema import ToolSchema

DriftKind: TypeAlias = Literal[
    "none", "retokenised", "thinking_dropped", "turn_rewritten", "prompt_rewritten"
]

_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Rhine"}}\n</tool_call>'

SCENARIOS: Mapping[str, tuple[tuple[ChatMessage, ...], tuple[ToolSchema, ...]]] = MappingProxyType(
    {
        "plain": (
            (
                {"role": "user", "content": "Say hi."},
                {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": "Again."},
            ),
            (),
        ),
        "system": (
            (
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Say hi."},
                {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": "Again."},
            ),
            (),
        ),
        "blanks": (
            (
                {"role": "user", "content": "Say hi."},
                {"role": "assistant", "content": "\n Hi. \n\n"},
                {"role": "user", "content": " Again.\n"},
            ),
            (),
        ),
        "thinking": (
            (
                {"role": "user", "content": "What is 2+2?"},
                {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4"},
                {"role": "user", "content": "And 3+3?"},
            ),
            (),
        ),
        "tool": (
            (
                {"role": "user", "content": "Where is the Rhine?"},
                {"role": "assistant", "content": _CALL},
                {"role": "tool", "content": "In Europe."},
            ),
            (_TOOL,),
        ),
        "thinking_tool": (
            (
                {"role": "user", "content": "Where is the Rhine?"},
                {"role": "assistant", "content": "<think>\nI look.\n</think>\n\n" + _CALL},
                {"role": "tool", "content": "In Europe."},
                {"role": "assistant", "content": "<think>\nGot it.\n</think>\n\nIn Europe."},
                {"role": "user", "content": "Thanks."},
            ),
            (_TOOL,),
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What re-rendering does to the tokens before one turn.

    Example: `Drift(scenario="thinking", turn=1, kind="thinking_dropped", position=31, before="<think>...",
    after="4<|im_end|>", append="ok")`.

    Attributes:
        scenario: Name of the chat.
        turn: Number of the assistant's turn whose tokens are compared with the next prompt: 0, 1, ...
        kind: `none`; `retokenised` (same text, other tokens); `thinking_dropped`; `turn_rewritten` (the
            sampled turn is changed otherwise: blanks, the form of calls); `prompt_rewritten` (already
            what came before it differs).
        position: First token that differs; -1 for none.
        before: Text from there on, as it was.
        after: Text from there on, as it is rendered.
        append: `ok` when appending new messages works with this template, else what is wrong.
    """

    scenario: str
    turn: int
    kind: DriftKind
    position: int
    before: str
    after: str
    append: str


def template_drift(
    chat: ChatTokenizer,
    *,
    scenarios: Mapping[str, tuple[Sequence[ChatMessage], Sequence[ToolSchema]]] = SCENARIOS,
) -> list[Drift]:
    """What a template does to history, for each assistant's turn that something follows.

    A sampled turn is taken to be the tokens of its content after the generation prompt, and the end token.

    Args:
        chat: Template and tokenizer.
        scenarios: Chats and tools.
    """
    found = []
    for name, (messages, tools) in scenarios.items():
        turn = 0
        for index, message in enumerate(messages[:-1]):
            if message["role"] != "assistant":
                continue
            try:
                found.append(_drift(chat, name, turn, messages[: index + 2], tools))
            except Exception as error:
                # Boundary to foreign code: a template may refuse a role or a message with any exception.
                append = f"{type(error).__name__}: {error}"[:200]
                found.append(
                    Drift(
                        scenario=name,
                        turn=turn,
                        kind="prompt_rewritten",
                        position=-1,
                        before="",
                        after="",
                        append=append,
                    )
                )
            turn += 1
    return found


def drift_table(drifts: Sequence[Drift]) -> str:
    """A report for people: a line for each turn."""
    rows = [("scenario", "turn", "rendering the chat again", "at token", "appending")]
    rows += [
        (d.scenario, str(d.turn), d.kind, "-" if d.position < 0 else str(d.position), d.append)
        for d in drifts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _drift(
    chat: ChatTokenizer,
    name: str,
    turn: int,
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSchema],
) -> Drift:
    """Compare the tokens up to the last assistant's turn with the rendering after the next message."""
    sampled, follow = messages[-2], messages[-1:]
    prompt = chat.render(messages[:-2], tools=tools, generation_prompt=True)
    before = [*prompt, *chat.encode(str(sampled["content"])), chat.end_token_id]
    after = chat.render(messages, tools=tools, generation_prompt=True)
    position = _first_difference(before, after)
    try:
        following_ids(chat, follow, tools=tools)
        append = "ok"
    except TranscriptError as error:
        append = str(error)
    if position < 0:
        return Drift(scenario=name, turn=turn, kind="none", position=-1, before="", after="", append=append)
    was, now = chat.decode(before[position:]), chat.decode(after[position:])
    if chat.decode(after).startswith(chat.decode(before)):
        kind: DriftKind = "retokenised"
    elif position < len(prompt):
        kind = "prompt_rewritten"
    else:
        kind = "thinking_dropped" if "</think>" in was and "</think>" not in now else "turn_rewritten"
    return Drift(
        scenario=name,
        turn=turn,
        kind=kind,
        position=position,
        before=was[:80],
        after=now[:80],
        append=append,
    )


def _first_difference(before: Sequence[int], after: Sequence[int]) -> int:
    for index, token in enumerate(before):
        if index >= len(after) or after[index] != token:
            return index
    return -1
