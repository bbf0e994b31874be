"""An environment in use: every call is bounded and every answer checked. Used by episodes and checks."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roll_agentic.boundary import Boundary
from roll_agentic.environment import Environment, Info


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
        self._boundary = Boundary(type(environment).__name__, deadline_s=deadline_s)

    async def reset(self, *, seed: int, within_s: float = math.inf) -> tuple[str, Info]:
        """The checked answer of `Environment.reset`.

        Args:
            seed: Seed of the episode.
            within_s: A deadline for this call, should it be shorter than that of the session.

        Raises:
            EnvironmentFault: It raised, missed the deadline, or answered in a wrong form.
        """
        answer = await self._boundary.call(
            "reset", functools.partial(self._environment.reset, seed=seed), within_s=within_s
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._boundary.invalid("reset", "(observation, info)", answer)
        observation, info = answer
        self._check_texts("reset", observation, info)
        return observation, info

    async def step(self, action: str, *, within_s: float = math.inf) -> Transition:
        """The checked answer of `Environment.step`.

        Args:
            action: What the policy said.
            within_s: A deadline for this call, should it be shorter than that of the session.

        Raises:
            EnvironmentFault: It raised, missed the deadline, or answered in a wrong form.
        """
        answer = await self._boundary.call(
            "step", functools.partial(self._environment.step, action), within_s=within_s
        )
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise self._boundary.invalid("step", "(observation, reward, terminated, truncated, info)", answer)
        observation, reward, terminated, truncated, info = answer
        self._check_texts("step", observation, info)
        if not isinstance(reward, float | int | np.floating | np.integer) or not math.isfinite(reward):
            raise self._boundary.invalid("step", "a finite number as reward", reward)
        for flag, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                raise self._boundary.invalid("step", f"a bool as {flag}", value)
        return Transition(
            observation=observation,
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            info=info,
        )

    def close(self) -> None:
        """Let go of the environment; it stays usable."""
        self._boundary.close()

    def _check_texts(self, method: str, observation: object, info: object) -> None:
        if not isinstance(observation, str):
            raise self._boundary.invalid(method, "a str as observation", observation)
        if not isinstance(info, Mapping):
            raise self._boundary.invalid(method, "a mapping as info", info)
