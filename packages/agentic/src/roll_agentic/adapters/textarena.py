"""Games of TextArena: for one player as environments, for several as games. Needs the extra `textarena`."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll_agentic.adapters.global_random import GlobalRandom
from roll_agentic.environment import Reset, Step
from roll_agentic.errors import AgenticError
from roll_agentic.game import GameReset, GameStep

# Seeds are mixed into products by some games; those of numpy take 32 bits.
_SEEDS = 2**32


class TextArenaGame:
    """A game of TextArena for several players, `player_0`, `player_1`, ...

    Args:
        env_id: TextArena's id, such as `TicTacToe-v0`.
        players: How many play, at least 1.
        **config: Passed to `textarena.make`.

    Raises:
        AgenticError: TextArena is not installed or has no such game.
    """

    def __init__(self, env_id: str, *, players: int = 2, **config: object) -> None:
        if players < 1:
            raise AgenticError(f"TextArenaGame needs players of at least 1, got {players}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import textarena  # type: ignore[import-untyped]  # no types
        except ImportError as error:
            raise AgenticError(
                "TextArena's games need textarena: pip install 'roll-agentic[textarena]'"
            ) from error
        self._random = GlobalRandom()
        self._make: Callable[[], Any] = functools.partial(textarena.make, env_id, **config)
        try:
            with self._random.installed():
                self._environment: Any = self._make()
        except (ValueError, LookupError) as error:
            raise AgenticError(f"TextArena cannot make {env_id!r}: {error}") from error
        self._names = tuple(f"player_{number}" for number in range(players))
        self._is_over = True

    @property
    def players(self) -> Sequence[str]:
        """Names of the players."""
        return self._names

    def reset(self, *, seed: int) -> GameReset:
        """Start a game."""
        self._random.seed(seed)
        with self._random.installed():
            # Its wrappers keep the last game's observations over a reset: begin with a fresh game.
            self._environment = self._make()
            self._environment.reset(num_players=len(self._names), seed=seed % _SEEDS)
            player, observation = self._environment.get_observation()
        self._is_over = False
        return {self._names[player]: str(observation)}, {}

    def step(self, actions: Mapping[str, str], /) -> GameStep:
        """Pass on the action of the player who is due; rewards come at the end.

        Raises:
            AgenticError: No game is going on.
        """
        if self._is_over or len(actions) != 1:
            raise AgenticError(
                f"TextArenaGame waits for one player's action or a reset, got {sorted(actions)}"
            )
        (action,) = actions.values()
        with self._random.installed():
            done, info = self._environment.step(action)
            if not done:
                player, observation = self._environment.get_observation()
                return {self._names[player]: str(observation)}, {}, False, False, dict(info)
            rewards, infos = self._environment.close()
        self._is_over = True
        named = {self._names[player]: float(reward) for player, reward in rewards.items()}
        last_words = {self._names[player]: str(about.get("reason", "")) for player, about in infos.items()}
        invalid = any(about.get("invalid_move") for about in infos.values())
        return last_words, named, True, False, {**info, "action_is_valid": not invalid}


class TextArena:
    """A game of TextArena for one player.

    Args:
        env_id: TextArena's id, such as `TowerOfHanoi-v0`.
        **config: Passed to `textarena.make`.

    Raises:
        AgenticError: TextArena is not installed or has no such game.
    """

    def __init__(self, env_id: str, **config: object) -> None:
        self._game = TextArenaGame(env_id, players=1, **config)

    def reset(self, *, seed: int) -> Reset:
        """Start a game."""
        observations, info = self._game.reset(seed=seed)
        return observations["player_0"], info

    def step(self, action: str, /) -> Step:
        """Answer an action.

        Raises:
            AgenticError: No game is going on.
        """
        observations, rewards, terminated, truncated, info = self._game.step({"player_0": action})
        return observations.get("player_0", ""), rewards.get("player_0", 0.0), terminated, truncated, info
