"""Tools that a policy may call: budget, deadlines, errors as text for the model. Used by environments."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, cast

from roll_agentic.call_thread import CallThread
from roll_agentic.deadlines import within
from roll_agentic.errors import AgenticError, DeadlineMissed
from roll_agentic.tools.call import ToolCall
from roll_agentic.tools.schema import ToolSchema, argument_problem, function_schema, schema_name


class Tool(Protocol):
    """Something that a policy may call by name."""

    @property
    def schema(self) -> ToolSchema:
        """Its schema in OpenAI's form."""
        ...

    async def call(self, arguments: Mapping[str, object]) -> str:
        """Carry out one call; may raise, which the model reads as an error.

        Args:
            arguments: They fit the schema.
        """
        ...


class ToolUnavailable(AgenticError):
    """A tool's own infrastructure broke (a sandbox, a server): not the model's doing, so no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came of a call.

    Example: `ToolResult(call=ToolCall(...), text="Error: no tool 'serch'; ...", is_error=True)`.

    Attributes:
        call: The call.
        text: For the model to read, cut to the toolbox's limit.
        is_error: Whether it is an error's text.
        was_made: Whether it counts against the budget.
    """

    call: ToolCall
    text: str
    is_error: bool
    was_made: bool


class FunctionTool:
    """A typed Python function as a tool.

    Args:
        function: Plain functions are called in a thread of their own, one call at a time each.

    Raises:
        AgenticError: The function has no schema; see `function_schema`.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._schema = function_schema(function)

    @property
    def schema(self) -> ToolSchema:
        """The function's schema."""
        return self._schema

    async def call(self, arguments: Mapping[str, object]) -> str:
        """What the function returns: text as it is, anything else as JSON or its `repr`."""
        if asyncio.iscoroutinefunction(self._function):
            return as_text(await self._function(**arguments))
        thread = CallThread(f"tool {schema_name(self._schema)}")
        try:
            return as_text(await thread.call(lambda: self._function(**arguments)))
        finally:
            thread.close()


class Toolbox:
    """Named tools with limits; one serves any number of episodes, each with a `budget` of its own.

    Args:
        tools: Tools or typed functions, their names all different.
        deadline_s: Seconds for each call, above 0.
        longest_text: Characters of a result; a longer one is cut in the middle, with a mark.
        parallel: How many calls of one response run at a time, at least 1.

    Raises:
        AgenticError: Two tools have the same name, or an argument is out of its range.
    """

    def __init__(
        self,
        tools: Iterable["Tool | Callable[..., object]"],
        *,
        deadline_s: float = 30.0,
        longest_text: int = 8000,
        parallel: int = 8,
    ) -> None:
        if not deadline_s > 0 or longest_text < 1 or parallel < 1:
            raise AgenticError(
                "a Toolbox needs deadline_s above 0, longest_text and parallel of at least 1, "
                f"got {deadline_s}, {longest_text}, {parallel}"
            )
        self._deadline_s = deadline_s
        self._longest_text = longest_text
        self._parallel = parallel
        self._tools: dict[str, Tool] = {}
        for given in tools:
            tool = given if _is_tool(given) else FunctionTool(cast("Callable[..., object]", given))
            name = schema_name(tool.schema)
            if name in self._tools:
                raise AgenticError(f"two tools are named {name!r}")
            self._tools[name] = tool

    @property
    def schemas(self) -> list[ToolSchema]:
        """Schemas of all tools, for `info["tools"]` or a chat template."""
        return [tool.schema for tool in self._tools.values()]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tools."""
        return tuple(self._tools)

    async def call_all(self, calls: Sequence[ToolCall], *, budget: int | None = None) -> list[ToolResult]:
        """Results in the order of the calls, which run at the same time.

        Args:
            calls: Calls of one response.
            budget: How many may still be made; the others are refused in their results. None for any.

        Raises:
            ToolUnavailable: A tool's infrastructure broke.
        """
        gate = asyncio.Semaphore(self._parallel)

        async def one(index: int, call: ToolCall) -> ToolResult:
            if budget is not None and index >= budget:
                return _error(call, "no tool calls are left; answer with what you know", was_made=False)
            async with gate:
                return await self._call(call)

        return list(await asyncio.gather(*(one(index, call) for index, call in enumerate(calls))))

    async def _call(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _error(call, f"there is no tool {call.name!r}; there are {known}", was_made=True)
        if problem := argument_problem(tool.schema, call.arguments):
            return _error(call, problem, was_made=True)
        try:
            text = await within(tool.call(call.arguments), deadline_s=self._deadline_s)
        except DeadlineMissed:
            return _error(call, f"{call.name} gave no answer within {self._deadline_s:g} s", was_made=True)
        except ToolUnavailable:
            raise
        except Exception as error:
            # Boundary to foreign code: a tool's exception is an answer for the model to read.
            kind = "" if isinstance(error, AgenticError) else f"{type(error).__name__}: "
            return _error(call, self._cut(f"{kind}{error}"), was_made=True)
        return ToolResult(call=call, text=self._cut(text), is_error=False, was_made=True)

    def _cut(self, text: str) -> str:
        if len(text) <= self._longest_text:
            return text
        half = self._longest_text // 2
        left_out = len(text) - 2 * half
        return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[len(text) - half :]}"


def as_text(value: object) -> str:
    """A tool's value for the model to read: text as it is, anything else as JSON or its `repr`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


def _is_tool(given: object) -> TypeGuard[Tool]:
    """Told by shape: a function has no schema."""
    return hasattr(given, "schema") and hasattr(given, "call")


def _error(call: ToolCall, message: str, *, was_made: bool) -> ToolResult:
    return ToolResult(call=call, text=f"Error: {message}", is_error=True, was_made=was_made)
