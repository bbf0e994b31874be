"""Running an agent of any kind against the server, and its episode. Called by rollout loops."""

import asyncio
import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from roll_agentic.episode import Failure, StopReason
from roll_agentic.errors import AgenticError
from roll_agentic.history import History
from roll_agentic.proxy.server import ProxyServer
from roll_agentic.proxy.session import Session

_OUTPUT_CHARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What an agent, or what judges it, says of an episode.

    Example: `AgentResult(reward=1.0, metrics={"tests_passed": 3.0})`.

    Attributes:
        reward: Of the episode, finite.
        turn_rewards: Of single calls, by number; the others have none.
        metrics: Numbers worth keeping.
    """

    reward: float
    turn_rewards: Mapping[int, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentEpisode:
    """An agent's episode.

    Example: an agent that answered after two calls has `status="done"` and a history with two turns.

    Attributes:
        seed: Of the episode.
        status: `done`, `time_limit` (the agent was stopped) or `policy_error` (no verdict: it broke).
        result: What it was worth; None without a verdict.
        history: Tokens of its calls.
        calls: For each turn of the history the number of its call.
        output: The end of what a program printed.
        failure: Why there is no verdict; None when there is one.
        seconds: Wall time.
    """

    seed: int
    status: StopReason
    result: AgentResult | None
    history: History
    calls: tuple[int, ...]
    output: str
    failure: Failure | None
    seconds: float

    @property
    def total_reward(self) -> float:
        """The reward; NaN without a verdict."""
        return math.nan if self.result is None else self.result.reward


AgentFunction: TypeAlias = Callable[[str, str], Awaitable[AgentResult | float]]
"""`agent(base_url, api_key)`: plays an episode and says what it was worth."""


class AgentRunner:
    """Runs agents against a server, each in a session of its own.

    Args:
        server: Running.
        seconds: Time of an episode, above 0; then the agent is stopped.
        max_calls: Calls of an episode at most; None for any number.
        max_tokens: Sampled tokens of an episode at most; None for any number.

    Raises:
        AgenticError: The time is not above 0.
    """

    def __init__(
        self,
        server: ProxyServer,
        *,
        seconds: float = 600.0,
        max_calls: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if not seconds > 0:
            raise AgenticError(f"an AgentRunner needs seconds above 0, got {seconds}")
        self._server, self._seconds = server, seconds
        self._max_calls, self._max_tokens = max_calls, max_tokens

    async def run_function(self, agent: AgentFunction, *, seed: int) -> AgentEpisode:
        """An episode of an agent in this process.

        Args:
            agent: Plays and judges; see `AgentFunction`.
            seed: Of the episode.
        """

        async def play(session: Session) -> tuple[AgentResult, str]:
            result = await agent(self._server.base_url, session.key)
            return (result if isinstance(result, AgentResult) else AgentResult(reward=float(result))), ""

        return await self._run(play, seed)

    async def run_program(
        self,
        command: Sequence[str],
        *,
        seed: int,
        env: Mapping[str, str] | None = None,
        judge: Callable[[str], AgentResult | float] | None = None,
    ) -> AgentEpisode:
        """An episode of an agent that is a program.

        It finds `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `EPISODE_SEED` in its environment and is judged by
        what it prints: by default, its last line is JSON, a number or `{"reward": ..., "metrics": ...}`.
        It and what it started are killed when the time is up.

        Args:
            command: Program and arguments.
            seed: Of the episode.
            env: More environment variables.
            judge: Makes the result from standard output.
        """

        async def play(session: Session) -> tuple[AgentResult, str]:
            variables = {
                **os.environ,
                **(env or {}),
                "OPENAI_BASE_URL": self._server.base_url,
                "OPENAI_API_KEY": session.key,
                "EPISODE_SEED": str(seed),
            }
            output = await _output(command, variables)
            result = (judge or _last_line)(output)
            if not isinstance(result, AgentResult):
                result = AgentResult(reward=float(result))
            return result, output[-_OUTPUT_CHARS:]

        return await self._run(play, seed)

    async def _run(
        self, play: Callable[[Session], Awaitable[tuple[AgentResult, str]]], seed: int
    ) -> AgentEpisode:
        session = self._server.sessions.open(
            seed=seed, max_calls=self._max_calls, max_tokens=self._max_tokens
        )
        started = time.monotonic()
        status, result, failure, output = StopReason.DONE, None, None, ""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                result, output = await play(session)
            if not math.isfinite(result.reward):
                message = f"the reward of an agent must be finite, got {result.reward}"
                status, result, failure = (
                    StopReason.POLICY_ERROR,
                    None,
                    Failure(kind="invalid", message=message),
                )
        except Exception as error:
            # Boundary to foreign code: an agent may raise anything; its episode has no verdict then.
            status, failure = _failed(error, limit.expired(), self._seconds)
        finally:
            self._server.sessions.forget(session)
        history, calls = session.history()
        return AgentEpisode(
            seed=seed,
            status=status,
            result=result,
            history=history,
            calls=calls,
            output=output,
            failure=failure,
            seconds=time.monotonic() - started,
        )


def _failed(error: Exception, is_late: bool, seconds: float) -> tuple[StopReason, Failure]:
    """How an episode without a verdict ended."""
    if is_late:
        message = f"the agent did not end within {seconds:g} s"
        return StopReason.TIME_LIMIT, Failure(kind="deadline", message=message)
    return StopReason.POLICY_ERROR, Failure(kind="error", message=f"{type(error).__name__}: {error}"[:2000])


async def _output(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Standard output of a program that ends well; it and its children are killed when cancelled.

    Raises:
        AgenticError: It ends with another code than 0.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await process.communicate()
    finally:
        # What it left behind must not go on in a session that is over.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        tail = errors.decode(errors="replace")[-_OUTPUT_CHARS:]
        raise AgenticError(f"the agent ended with code {process.returncode}: {tail}")
    return output.decode(errors="replace")


def _last_line(output: str) -> AgentResult:
    """The result in the last line of a program's output.

    Raises:
        AgenticError: It is not of the expected form.
    """
    lines = output.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
        if isinstance(told, dict):
            return AgentResult(reward=float(told["reward"]), metrics=told.get("metrics", {}))
        return AgentResult(reward=float(told))  # type: ignore[arg-type]  # checked by the except
    except (ValueError, TypeError, KeyError) as error:
        shown = lines[-1][:200] if lines else ""
        raise AgenticError(
            f"an agent's last line must be a number or JSON with 'reward', got {shown!r}"
        ) from error
