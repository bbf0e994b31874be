"""Every environment of GEM by its id. Needs the extra `gem` (gem-llm >=0.1,<0.2)."""

import warnings
from typing import Any

from roll_agentic.adapters.global_random import GlobalRandom
from roll_agentic.environment import Reset, Step
from roll_agentic.errors import AgenticError


class GemEnvironment:
    """An environment of GEM, such as `game:GuessTheNumber-v0-easy` or `rg:leg_counting`.

    GEM's environments draw from Python's and numpy's global random state; here each has one of its own,
    so that concurrent episodes do not disturb each other. A final observation that only says that the
    state is terminal becomes empty. An exception at an action that makes no sense is passed on: it is
    a fault of the environment.

    Args:
        env_id: GEM's id.
        **config: Passed to `gem.make`.

    Raises:
        AgenticError: GEM is not installed or has no such environment.
    """

    def __init__(self, env_id: str, **config: object) -> None:
        try:
            with warnings.catch_warnings():
                # Its source has invalid escapes, which warn when it is compiled.
                warnings.simplefilter("ignore")
                import gem  # type: ignore[import-untyped]  # no types
        except ImportError as error:
            raise AgenticError("GEM's environments need gem-llm: pip install 'roll-agentic[gem]'") from error
        self._random = GlobalRandom()
        with warnings.catch_warnings(), self._random.installed():
            warnings.simplefilter("ignore")
            try:
                self._environment: Any = gem.make(env_id, **config)
            except ValueError as error:
                raise AgenticError(f"GEM has no environment {env_id!r}: {error}") from error
        self._terminal = str(getattr(gem.core, "TERMINAL_STATE", "<｜TERMINAL_STATE｜>"))
        self._is_over = True

    def reset(self, *, seed: int) -> Reset:
        """Start an episode; GEM gets the lowest 32 bits of the seed, which is what numpy can take."""
        self._random.seed(seed)
        with self._random.installed():
            observation, info = self._environment.reset(seed=seed % 2**32)
        self._is_over = False
        return str(observation), dict(info)

    def step(self, action: str, /) -> Step:
        """Answer an action.

        Raises:
            AgenticError: The episode is over.
        """
        if self._is_over:
            raise AgenticError("GemEnvironment has no episode going on; call reset before step")
        with self._random.installed():
            observation, reward, terminated, truncated, info = self._environment.step(action)
        self._is_over = bool(terminated or truncated)
        text = "" if observation == self._terminal else str(observation)
        # GEM sets both flags at a task's own end.
        return text, float(reward), bool(terminated), bool(truncated and not terminated), dict(info)
