"""Environments of Gymnasium as text. Needs the extra `gymnasium` (and whatever the environment needs)."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError

# What a terminal would show in colour, such as the cell where the player is, is shown in brackets.
_HIGHLIGHT = re.compile(r"(?:\x1b\[[\d;]*m)+(.*?)(?:\x1b\[0m)+", re.DOTALL)


class GymnasiumText:
    """An environment with text or discrete actions, its observations as text.

    A text space is passed through. A discrete action is said by its name or its number; anything else
    is answered with the allowed ones and does not reach the environment. Observations are the rendered
    text (`render_mode="ansi"`) if there is one, else the observation itself.

    Args:
        env_id: Gymnasium's id.
        action_names: Names of discrete actions, in order; none for numbers only.
        show: Makes text of an observation; None for the above.
        **config: Passed to `gymnasium.make`.

    Raises:
        AgenticError: Gymnasium is not installed, has no such environment, or its actions are of another
            kind.
    """

    def __init__(
        self,
        env_id: str,
        *,
        action_names: Sequence[str] = (),
        show: Callable[[object], str] | None = None,
        **config: object,
    ) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise AgenticError("this needs gymnasium: pip install 'roll-agentic[gymnasium]'") from error
        options: Any = config
        try:
            self._environment: Any = gymnasium.make(env_id, **options)
        except (gymnasium.error.Error, ValueError, TypeError) as error:
            raise AgenticError(f"Gymnasium cannot make {env_id!r}: {error}") from error
        space = self._environment.action_space
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Text):
            raise AgenticError(
                f"{env_id!r} has actions in {space}; only Discrete and Text can be said in words"
            )
        self._first = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else None
        count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        if action_names and len(action_names) != count:
            raise AgenticError(f"{env_id!r} has {count} actions, got {len(action_names)} names")
        self._actions = list(action_names) or [str(number) for number in range(count)]
        self._show = show
        self._last = ""
        self._is_over = True

    def reset(self, *, seed: int) -> Reset:
        """Start an episode; Gymnasium gets the lowest 32 bits of the seed."""
        observation, info = self._environment.reset(seed=seed % 2**32)
        self._is_over = False
        self._last = self._text(observation)
        return self._last, {**info, **self._named(), "action_is_valid": True}

    def step(self, action: str, /) -> Step:
        """Answer an action.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._is_over:
            raise AgenticError("GymnasiumText has no episode going on; call reset before step")
        chosen: object = action
        if self._first is not None:
            word = marked_answer(action)
            if word in self._actions:
                chosen = self._first + self._actions.index(word)
            elif word.isascii() and word.isdigit() and len(word) < 10 and int(word) < len(self._actions):
                chosen = self._first + int(word)
            else:
                reply = f"Say one of {', '.join(self._actions)}.\n{self._last}"
                return reply, 0.0, False, False, {**self._named(), "action_is_valid": False}
        observation, reward, terminated, truncated, info = self._environment.step(chosen)
        self._is_over = bool(terminated or truncated)
        self._last = self._text(observation)
        info = {**info, **self._named(), "action_is_valid": True}
        return self._last, float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Let go of the environment."""
        self._environment.close()

    def _named(self) -> dict[str, object]:
        return {"actions": list(self._actions)} if self._first is not None else {}

    def _text(self, observation: object) -> str:
        if self._show is not None:
            return self._show(observation)
        if self._environment.render_mode == "ansi":
            return _HIGHLIGHT.sub(r"[\1]", str(self._environment.render())).strip("\n")
        if isinstance(observation, np.ndarray):
            return np.array2string(observation, precision=3, separator=", ", threshold=2000)
        return str(observation)
