"""An environment in use: every call is bounded and every answer checked. Used by episodes and checks."""

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll_agentic.call_thread import CallThread
from roll_agentic.deadlines import within
from roll_agentic.environment import Environment, Info
from roll_agentic.errors import DeadlineMissed, EnvironmentFault

_log = logging.getLogger(__name__)
_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A checked answer of `Environment.step`.

    Example: `Transition(observation="<", reward=0.0, terminated=False, truncated=False, info={})`.

    Attributes:
        observation: Text for the policy.
        reward: Finite.
        terminated: Over by the task's own rules.
        truncated: Cut off from outside.
        info: What may interest others.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info


class EnvironmentSession:
    """Calls one environment, plain methods in a thread and `async` ones as they are.

    Args:
        environment: Not used by anyone else meanwhile.
        deadline_s: Seconds for each call, above 0.
    """

    def __init__(self, environment: Environment, *, deadline_s: float) -> None:
        self._environment = environment
        self._deadline_s = deadline_s
        self._name = type(environment).__name__
        self._thread: CallThread | None = None

    async def reset(self, *, seed: int) -> tuple[str, Info]:
        """The checked answer of `Environment.reset`.

        Raises:
            EnvironmentFault: It raised, missed the deadline, or answered in a wrong form.
        """
        answer = await self._call("reset", functools.partial(self._environment.reset, seed=seed))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._invalid("reset", "(observation, info)", answer)
        observation, info = answer
        self._check_texts("reset", observation, info)
        return observation, info

    async def step(self, action: str) -> Transition:
        """The checked answer of `Environment.step`.

        Raises:
            EnvironmentFault: It raised, missed the deadline, or answered in a wrong form.
        """
        answer = await self._call("step", functools.partial(self._environment.step, action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise self._invalid("step", "(observation, reward, terminated, truncated, info)", answer)
        observation, reward, terminated, truncated, info = answer
        self._check_texts("step", observation, info)
        if not isinstance(reward, float | int | np.floating | np.integer) or not math.isfinite(reward):
            raise self._invalid("step", "a finite number as reward", reward)
        for flag, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                raise self._invalid("step", f"a bool as {flag}", value)
        return Transition(
            observation=observation,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=info,
        )

    def close(self) -> None:
        """Let go of the environment; it stays usable."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def _call(self, method: str, function: Callable[[], Any]) -> object:
        try:
            return await within(self._answer(function), deadline_s=self._deadline_s)
        except DeadlineMissed as missed:
            # The thread may be stuck in this call: the next call gets another one.
            self.close()
            raise EnvironmentFault("deadline", f"{self._name}.{method}: {missed}") from missed
        except Exception as error:
            # Boundary to foreign code: this is where an environment's exception becomes a fault.
            _log.debug("%s.%s raised", self._name, method, exc_info=error)
            message = f"{self._name}.{method} raised {type(error).__name__}: {error}"[:_MESSAGE_CHARS]
            raise EnvironmentFault("error", message) from error

    async def _answer(self, function: Callable[[], Any]) -> object:
        if inspect.iscoroutinefunction(function):
            answer = function()
        else:
            if self._thread is None:
                self._thread = CallThread(f"environment {self._name}")
            answer = await self._thread.call(function)
        return await answer if inspect.isawaitable(answer) else answer

    def _check_texts(self, method: str, observation: object, info: object) -> None:
        if not isinstance(observation, str):
            raise self._invalid(method, "a str as observation", observation)
        if not isinstance(info, Mapping):
            raise self._invalid(method, "a mapping as info", info)

    def _invalid(self, method: str, expected: str, got: object) -> EnvironmentFault:
        message = f"{self._name}.{method} must return {expected}, got {type(got).__name__} {got!r:.80}"
        return EnvironmentFault("invalid", message)
