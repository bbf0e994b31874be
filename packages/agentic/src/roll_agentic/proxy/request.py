"""Requests in OpenAI's two forms, checked and brought into one. Called by the proxy server."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll_agentic.chat import ChatMessage
from roll_agentic.errors import AgenticError
from roll_agentic.proxy.session import content_text
from roll_agentic.tools.schema import ToolSchema, schema_problem

_ROLES = ("system", "developer", "user", "assistant", "tool")


class BadRequest(AgenticError):
    """A request that cannot be answered as it is; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for one reply.

    Example: `ChatRequest(model="policy", messages=({"role": "user", "content": "hi"},), tools=(),
    max_tokens=None, stops=(), stream=False, stream_usage=False)`.

    Attributes:
        model: Name that the agent gave.
        messages: The chat, `developer` taken as `system`.
        tools: Schemas that may be called; empty when calls are forbidden.
        max_tokens: Tokens of the reply that the agent wants at most; None for no wish.
        stops: Stop sequences.
        stream: Whether the reply is wanted in pieces.
        stream_usage: Whether the counts of tokens follow as a piece of their own.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSchema, ...]
    max_tokens: int | None
    stops: tuple[str, ...]
    stream: bool
    stream_usage: bool


def chat_request(body: object) -> ChatRequest:
    """A request of `/v1/chat/completions`.

    Raises:
        BadRequest: A field is missing, of a wrong type, or asks for what is not served.
    """
    fields = _object(body)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' must be a list of at least one message")
    if fields.get("n") not in (None, 1):
        raise BadRequest(f"'n' must be 1, got {fields['n']!r}")
    stream_options = fields.get("stream_options")
    return ChatRequest(
        model=str(fields.get("model") or "policy"),
        messages=tuple(_message(index, message) for index, message in enumerate(messages)),
        tools=_tools(fields),
        max_tokens=_most(fields, "max_completion_tokens", "max_tokens"),
        stops=_stops(fields.get("stop")),
        stream=bool(fields.get("stream")),
        stream_usage=isinstance(stream_options, Mapping) and bool(stream_options.get("include_usage")),
    )


def responses_request(body: object) -> ChatRequest:
    """A request of `/v1/responses`, whose items become messages.

    Raises:
        BadRequest: A field is missing, of a wrong type, or asks for what is not served.
    """
    fields = _object(body)
    if fields.get("previous_response_id"):
        raise BadRequest("'previous_response_id' is not served; send the whole input")
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise BadRequest("'input' must be a text or a list of at least one item")
    messages: list[ChatMessage] = []
    if fields.get("instructions"):
        messages.append({"role": "system", "content": str(fields["instructions"])})
    for index, item in enumerate(items):
        _add_item(messages, index, item)
    flat = fields.get("tools") or []
    if not isinstance(flat, list):
        raise BadRequest("'tools' must be a list")
    nested = [_nested_tool(tool) for tool in flat]
    return ChatRequest(
        model=str(fields.get("model") or "policy"),
        messages=tuple(messages),
        tools=_tools({**fields, "tools": nested}),
        max_tokens=_most(fields, "max_output_tokens"),
        stops=(),
        stream=bool(fields.get("stream")),
        stream_usage=False,
    )


def _object(body: object) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _message(index: int, message: object) -> ChatMessage:
    """A message with its contents as text.

    Raises:
        BadRequest: It has no known role, or contents other than text.
    """
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise BadRequest(f"messages[{index}] must have a role of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in ("text", "input_text", "output_text"):
                raise BadRequest(f"messages[{index}] has a part of type {kind!r}; only text is served")
    elif content is not None and not isinstance(content, str):
        raise BadRequest(f"messages[{index}].content must be text, got {type(content).__name__}")
    role = "system" if message["role"] == "developer" else message["role"]
    plain: dict[str, object] = {"role": role, "content": content_text(content)}
    if message.get("tool_calls"):
        plain["tool_calls"] = _calls(index, message["tool_calls"])
    if message.get("tool_call_id"):
        plain["tool_call_id"] = message["tool_call_id"]
    return plain


def _calls(index: int, calls: object) -> list[dict[str, object]]:
    """Calls of a message with their arguments as objects, which is what templates render.

    Raises:
        BadRequest: One has no function with a name.
    """
    plain = []
    for call in calls if isinstance(calls, list) else [{}]:
        function = call.get("function") if isinstance(call, Mapping) else None
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not named:
            raise BadRequest(f"messages[{index}].tool_calls must be calls of named functions")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            # Arguments that are no JSON stay as the text that they are.
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        plain.append(
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return plain


def _add_item(messages: list[ChatMessage], index: int, item: object) -> None:
    """An input item as a message; calls join the assistant's message before them."""
    if not isinstance(item, Mapping):
        raise BadRequest(f"input[{index}] must be an object")
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(_message(index, item))
    elif kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments", "{}")},
        }
        last = messages[-1] if messages else None
        called = _calls(index, [call])
        if last is not None and last["role"] == "assistant":
            before = last.get("tool_calls", [])
            messages[-1] = {**last, "tool_calls": [*before, *called]}  # type: ignore[misc]  # a list, made here
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": called})
    elif kind == "function_call_output":
        output = content_text(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind != "reasoning":
        raise BadRequest(
            f"input[{index}] has type {kind!r}; served are message, function_call and function_call_output"
        )


def _nested_tool(tool: object) -> object:
    """A tool of the responses form in that of chat completions."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise BadRequest("only tools of type 'function' are served")
    function = {key: tool[key] for key in ("name", "description", "parameters") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _tools(fields: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    tools = fields.get("tools") or []
    if not isinstance(tools, list):
        raise BadRequest("'tools' must be a list")
    for index, tool in enumerate(tools):
        problem = schema_problem(tool) if isinstance(tool, Mapping) else "it is no object"
        if problem:
            raise BadRequest(f"tools[{index}]: {problem}")
    return () if fields.get("tool_choice") == "none" else tuple(tools)


def _most(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadRequest(f"{name!r} must be a whole number of at least 1, got {value!r}")
            return value
    return None


def _stops(stop: object) -> tuple[str, ...]:
    stops: Sequence[object] = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    if stop is not None and (not stops or not all(isinstance(text, str) and text for text in stops)):
        raise BadRequest(f"'stop' must be a text or a list of texts, none of them empty, got {stop!r}")
    return tuple(str(text) for text in stops)
