"""Replies in OpenAI's two forms, whole and in pieces. Called by the proxy server."""

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from roll_agentic.tools.call import ToolCall

_PIECE = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the policy said, taken apart.

    Example: `Reply(model="policy", text="", calls=(ToolCall(...),), finish_reason="tool_calls",
    prompt_tokens=30, completion_tokens=12)`.

    Attributes:
        model: Name that the agent gave.
        text: Content of the message.
        calls: Calls of tools, with ids that are unique.
        finish_reason: `stop`, `length` or `tool_calls`.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens that were sampled.
    """

    model: str
    text: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def message(self) -> dict[str, object]:
        """The assistant's message in the form of chat completions."""
        message: dict[str, object] = {"role": "assistant", "content": self.text or None}
        if not self.calls:
            message["content"] = self.text
        else:
            message["tool_calls"] = [_call(call) for call in self.calls]
        return message


def chat_completion(reply: Reply) -> dict[str, object]:
    """The body of a chat completion."""
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason, "logprobs": None}
    return {**_head("chat.completion", reply), "choices": [choice], "usage": _usage(reply)}


def chat_pieces(reply: Reply, *, usage: bool) -> Iterator[str]:
    """The lines of a streamed chat completion, as server-sent events.

    Args:
        reply: What is sent; it was sampled as a whole, so pieces are words, not tokens.
        usage: Whether the counts of tokens follow as the last piece.
    """
    head = _head("chat.completion.chunk", reply)
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _PIECE.findall(reply.text)]
    deltas += [{"tool_calls": [{"index": i, **_call(call)}]} for i, call in enumerate(reply.calls)]
    for delta in deltas:
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]})
    if usage:
        yield _event({**head, "choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def response(reply: Reply, *, status: str = "completed") -> dict[str, object]:
    """The body of a response.

    Args:
        reply: What is sent.
        status: `in_progress` for the body at the beginning of a stream.
    """
    cut_off = reply.finish_reason == "length"
    is_done = status == "completed"
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut_off and is_done else status,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off and is_done else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": _output(reply) if is_done else [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }
        if is_done
        else None,
    }


def response_pieces(reply: Reply) -> Iterator[str]:
    """The events of a streamed response."""
    final = response(reply)
    number = 0

    def event(kind: str, **fields: object) -> str:
        nonlocal number
        number += 1
        return _event({"type": kind, "sequence_number": number - 1, **fields}, kind=kind)

    begun = {**response(reply, status="in_progress"), "id": final["id"]}
    yield event("response.created", response=begun)
    output = final["output"]
    assert isinstance(output, list)
    for index, item in enumerate(output):
        where = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            empty = {**item, "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            place = {**where, "content_index": 0}
            yield event("response.output_item.added", output_index=index, item=empty)
            yield event("response.content_part.added", **place, part=part)
            for piece in _PIECE.findall(reply.text):
                yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
            yield event("response.output_text.done", **place, text=reply.text, logprobs=[])
            yield event("response.content_part.done", **place, part=item["content"][0])
        else:
            empty = {**item, "status": "in_progress", "arguments": ""}
            yield event("response.output_item.added", output_index=index, item=empty)
            yield event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield event(
                "response.function_call_arguments.done",
                **where,
                name=item["name"],
                arguments=item["arguments"],
            )
        yield event("response.output_item.done", output_index=index, item=item)
    ended = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
    yield event(ended, response=final)


def error_body(message: str, *, kind: str, code: str) -> dict[str, object]:
    """The body of an error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _head(kind: str, reply: Reply) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
    }


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _call(call: ToolCall) -> dict[str, object]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _output(reply: Reply) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    if reply.text or not reply.calls:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        items.append(
            {
                "id": f"msg_{uuid.uuid4().hex}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    items += [
        {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": json.dumps(call.arguments, ensure_ascii=False),
            "status": "completed",
        }
        for call in reply.calls
    ]
    return items


def _event(data: dict[str, object], *, kind: str = "") -> str:
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n"
