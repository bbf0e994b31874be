"""Calls of tools in what a model said: one parser for each common form.

A parser tells calls from mistakes and never guesses: arguments that are no JSON object are a mistake
that goes back to the model, not a call with empty arguments.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from roll_agentic.errors import AgenticError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that can be carried out.

    Example: `ToolCall(name="search", arguments={"query": "Rhine"}, id="call_0")`.

    Attributes:
        name: Name of the tool; it need not exist.
        arguments: By name.
        id: Names the call in its result; unique within a response.
    """

    name: str
    arguments: Mapping[str, object]
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """A response taken apart.

    Example: `ParsedResponse(text="Let me look.", calls=(ToolCall(...),), mistakes=())`.

    Attributes:
        text: What is said besides the calls.
        calls: Well-formed calls, in order.
        mistakes: What is wrong with the others, for the model to read.
    """

    text: str
    calls: tuple[ToolCall, ...]
    mistakes: tuple[str, ...]


CallParser: TypeAlias = Callable[[str], ParsedResponse]

# Python's parser is not to be trusted with deep nesting.
_MOST_BRACKETS = 60
_JSON_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION_BLOCK = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER_BLOCK = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_XML_CALL = re.compile(r"<([A-Za-z_][\w.-]*)>(.*?)</\1>", re.DOTALL)
_CODE_FENCE = re.compile(r"```(?:python|py)[ \t]*\n(.*?)```", re.DOTALL)
_CODE_TAG = re.compile(r"<(python|code)>\n?(.*?)</\1>", re.DOTALL)


def parse_hermes(response: str) -> ParsedResponse:
    """Calls as JSON in `<tool_call>` blocks: the form of Qwen2.5, Qwen3 and Hermes.

    Args:
        response: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.
    """
    found = _Found()
    for match in _JSON_BLOCK.finditer(response):
        if not match[2]:
            found.mistakes.append("a <tool_call> block was not closed with </tool_call>")
            continue
        try:
            payload = json.loads(match[1])
        except ValueError as error:
            found.mistakes.append(f"the content of a <tool_call> block is not JSON: {error}")
            continue
        found.add(payload)
    return found.response(_JSON_BLOCK.sub("", response))


def parse_qwen_coder(response: str) -> ParsedResponse:
    """Calls as `<function=name><parameter=key>value</parameter></function>`: the form of Qwen3-Coder.

    Args:
        response: Such blocks, within `<tool_call>` or not. A value that is JSON counts as what it says,
            any other as text.
    """
    found = _Found()
    for name, body in _FUNCTION_BLOCK.findall(response):
        arguments: dict[str, object] = {key: _value(text) for key, text in _PARAMETER_BLOCK.findall(body)}
        found.add({"name": name, "arguments": arguments})
    if response.count("<function=") > len(found.calls) + len(found.mistakes):
        found.mistakes.append("a <function=...> block was not closed with </function>")
    return found.response(re.sub(r"</?tool_call>", "", _FUNCTION_BLOCK.sub("", response)))


def parse_xml(response: str, *, names: Sequence[str] = ()) -> ParsedResponse:
    """Calls as elements named after the tool, `<search><query>Rhine</query></search>`.

    Args:
        response: What was said.
        names: Names of the tools; other elements are text. With none, every outermost element is a call.
    """
    found = _Found()

    def take(match: re.Match[str]) -> str:
        name, body = match[1], match[2]
        if names and name not in names:
            return match[0]
        inner = _XML_CALL.findall(body)
        if inner:
            found.add({"name": name, "arguments": {key: _value(text) for key, text in inner}})
        elif body.strip():
            found.mistakes.append(f"the arguments of <{name}> must be elements, got {body.strip()!r:.80}")
        else:
            found.add({"name": name, "arguments": {}})
        return ""

    text = _XML_CALL.sub(take, response)
    for name in names:
        if f"<{name}>" in text:
            found.mistakes.append(f"the element <{name}> was not closed")
    return found.response(text)


def parse_python_blocks(response: str, *, name: str = "python") -> ParsedResponse:
    """Programs in code fences or `<python>` elements, as calls `python(code=...)`.

    Args:
        response: What was said.
        name: Name of the tool that runs programs.
    """
    found = _Found()
    pattern = _CODE_TAG if _CODE_TAG.search(response) else _CODE_FENCE
    for match in pattern.finditer(response):
        found.add({"name": name, "arguments": {"code": match[match.lastindex or 0]}})
    if re.search(r"```(?:python|py)[ \t]*\n", _CODE_FENCE.sub("", response)):
        found.mistakes.append("a code block was not closed with ```")
    return found.response(pattern.sub("", response))


def parse_pythonic(response: str) -> ParsedResponse:
    """Calls as a Python list, `[search(query="Rhine"), add(a=1, b=2)]`: the form of Llama 3.2 and 4.

    Args:
        response: Such a list and nothing else is calls; anything else is text.
    """
    found = _Found()
    body = response.strip()
    if not re.match(r"\[\s*[A-Za-z_][\w.]*\(", body):
        return found.response(response)
    if max(body.count(bracket) for bracket in "([{-+~") > _MOST_BRACKETS:
        found.mistakes.append(f"the list of calls has more than {_MOST_BRACKETS} brackets of a kind")
        return found.response("")
    try:
        tree = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        found.mistakes.append(f"the list of calls is not valid: {error}")
        return found.response("")
    for node in tree.elts if isinstance(tree, ast.List) else []:
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            found.mistakes.append("each call must be written name(key=value)")
            continue
        try:
            arguments = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except (ValueError, SyntaxError, RecursionError):
            found.mistakes.append(f"the arguments of {ast.unparse(node.func)} must be plain values")
            continue
        found.add({"name": ast.unparse(node.func), "arguments": arguments})
    return found.response("")


def parse_openai(tool_calls: Sequence[Mapping[str, object]], *, text: str = "") -> ParsedResponse:
    """Calls in the field `tool_calls` of an OpenAI chat message.

    Args:
        tool_calls: `{"id", "type": "function", "function": {"name", "arguments": JSON text}}` each.
        text: The message's content.
    """
    found = _Found()
    for call in tool_calls:
        function = call.get("function")
        if not isinstance(function, Mapping):
            found.mistakes.append("a tool call needs an object 'function'")
            continue
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                found.mistakes.append(f"the arguments of {function.get('name')} are not JSON: {error}")
                continue
        found.add({"name": function.get("name"), "arguments": arguments}, call_id=call.get("id"))
    return found.response(text)


PARSERS: Mapping[str, CallParser] = MappingProxyType(
    {
        "hermes": parse_hermes,
        "python": parse_python_blocks,
        "pythonic": parse_pythonic,
        "qwen3_coder": parse_qwen_coder,
        "xml": parse_xml,
    }
)


def call_parser(name: str) -> CallParser:
    """A parser by name.

    Raises:
        AgenticError: There is none of that name.
    """
    if name not in PARSERS:
        raise AgenticError(f"there is no call parser {name!r}; there are {', '.join(PARSERS)}")
    return PARSERS[name]


class _Found:
    """Calls and mistakes while a response is read."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.mistakes: list[str] = []

    def add(self, payload: object, *, call_id: object = None) -> None:
        """Add a call if the payload is one, else a mistake."""
        if (
            not isinstance(payload, Mapping)
            or not isinstance(payload.get("name"), str)
            or not payload["name"]
        ):
            self.mistakes.append(f"a call needs 'name' and 'arguments', got {json.dumps(payload)[:80]}")
            return
        arguments = payload.get("arguments", {})
        if not isinstance(arguments, Mapping):
            self.mistakes.append(
                f"the arguments of {payload['name']} must be an object, got {json.dumps(arguments)[:80]}"
            )
            return
        name = f"call_{len(self.calls)}" if not isinstance(call_id, str) or not call_id else call_id
        self.calls.append(ToolCall(name=payload["name"], arguments=dict(arguments), id=name))

    def response(self, text: str) -> ParsedResponse:
        """What was found, with what is left of the text."""
        return ParsedResponse(text=text.strip(), calls=tuple(self.calls), mistakes=tuple(self.mistakes))


def _value(text: str) -> object:
    """What a parameter's text stands for: JSON if it is, else itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
