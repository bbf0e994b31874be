"""Tools in front of any environment: a response that calls tools is answered by them, any other by it.

This is the wrapper of GEM's tool environments, for `Environment` of every origin.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from roll_agentic.boundary import Boundary
from roll_agentic.environment import Environment, Info, Reset, Step
from roll_agentic.errors import AgenticError, EnvironmentFault
from roll_agentic.tools.call import CallParser, ParsedResponse, call_parser
from roll_agentic.tools.toolbox import Toolbox, ToolResult, ToolUnavailable

T = TypeVar("T")


class ToolEnvironment:
    """An environment whose policy may call tools before it acts.

    A turn with calls, or with calls gone wrong, is answered with their results and does not reach
    the environment; any other turn does. A cut-off response is not carried out, since a turn that
    ended by `length` is never given to an environment.

    Args:
        environment: What the policy acts on in the end.
        tools: What it may call.
        parser: Finds calls in a response: a function or a name in `PARSERS`.
        budget: How many calls an episode may make, at least 0; None for any number.
        mistake_reward: Reward of a turn with a malformed call, at most 0.

    Raises:
        AgenticError: An argument is out of its range, or there is no such parser.
    """

    def __init__(
        self,
        environment: Environment,
        tools: Toolbox,
        *,
        parser: CallParser | str = "hermes",
        budget: int | None = None,
        mistake_reward: float = 0.0,
    ) -> None:
        if (budget is not None and budget < 0) or mistake_reward > 0:
            raise AgenticError(
                "a ToolEnvironment needs a budget of at least 0 and a mistake_reward of at most 0, "
                f"got {budget} and {mistake_reward}"
            )
        self._environment = environment
        self._tools = tools
        self._parser: Callable[[str], ParsedResponse] = (
            call_parser(parser) if isinstance(parser, str) else parser
        )
        self._budget = budget
        self._mistake_reward = mistake_reward
        self._left = budget
        self._inner_info: Info = {}
        self._boundary = Boundary(type(environment).__name__, deadline_s=3600.0)

    async def reset(self, *, seed: int) -> Reset:
        """Start an episode with a full budget; `info["tools"]` has the schemas."""
        self._left = self._budget
        answer = await self._inner("reset", lambda: self._environment.reset(seed=seed))
        observation, info = answer
        self._inner_info = info
        return observation, self._info(info)

    async def step(self, action: str, /) -> Step:
        """Carry out the calls in a response, or pass it on.

        Raises:
            EnvironmentFault: A tool's infrastructure broke.
        """
        parsed = self._parser(action)
        if not parsed.calls and not parsed.mistakes:
            answer = await self._inner("step", lambda: self._environment.step(action))
            observation, reward, terminated, truncated, info = answer
            self._inner_info = info
            return observation, reward, terminated, truncated, self._info(info)
        try:
            results = await self._tools.call_all(parsed.calls, budget=self._left)
        except ToolUnavailable as error:
            raise EnvironmentFault("error", f"a tool is not available: {error}") from error
        made = sum(result.was_made for result in results)
        if self._left is not None:
            self._left -= made
        observation = _observation(results, parsed.mistakes)
        reward = self._mistake_reward if parsed.mistakes else 0.0
        info = {
            **self._info({k: v for k, v in self._inner_info.items() if k != "action_is_valid"}),
            "action_is_valid": not parsed.mistakes,
            "tool_calls": made,
            "tool_errors": sum(result.is_error for result in results),
            "tool_results": tuple((result.call.id, result.text) for result in results),
        }
        return observation, reward, False, False, info

    async def _inner(self, method: str, call: Callable[[], T | Awaitable[T]]) -> T:
        """An answer of the wrapped environment, whose plain methods may block."""
        return await self._boundary.call(method, call, within_s=3600.0)  # type: ignore[return-value]  # its own

    def _info(self, info: Info) -> dict[str, object]:
        return {**info, "tools": self._tools.schemas, "tool_calls_left": self._left}


def _observation(results: list[ToolResult], mistakes: tuple[str, ...]) -> str:
    """What the model reads: results in order, each named when there are several, then mistakes."""
    if len(results) == 1 and not mistakes:
        return results[0].text
    lines = [f"[{result.call.id} {result.call.name}] {result.text}" for result in results]
    return "\n".join([*lines, *(f"Error: {mistake}" for mistake in mistakes)])
