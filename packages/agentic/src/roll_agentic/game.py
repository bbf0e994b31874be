"""Games of several players: the seam, a table that seats them, and a game against fixed opponents.

The form is that of GEM's and PettingZoo's parallel games: observations for those who act next, a
mapping of their actions back. A seat at a table is an `Environment`, so each player's episode has the
limits, stop reasons and transcripts of any other.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, TypeAlias

from roll_agentic.boundary import Boundary
from roll_agentic.environment import Info, Reset, Step
from roll_agentic.episode import Episode
from roll_agentic.errors import AgenticError, EnvironmentFault
from roll_agentic.policy import Policy
from roll_agentic.runner import run_episode

GameReset: TypeAlias = tuple[Mapping[str, str], Info]
GameStep: TypeAlias = tuple[Mapping[str, str], Mapping[str, float], bool, bool, Info]


class Game(Protocol):
    """A world for several players, one game after the other; plain or `async` methods."""

    @property
    def players(self) -> Sequence[str]:
        """Their names, always the same."""
        ...

    def reset(self, *, seed: int) -> GameReset | Awaitable[GameReset]:
        """Start a game: observations of the players who act first, and info."""
        ...

    def step(self, actions: Mapping[str, str], /) -> GameStep | Awaitable[GameStep]:
        """Answer the actions of exactly those players who had an observation last.

        Returns:
            `(observations, rewards, terminated, truncated, info)`: observations of those who act next
            (last words for anyone once the game is over), rewards of any players, and whether the game
            is over for all.
        """
        ...


class Table:
    """Seats the players of one game; every seat is played by an episode of its own, at the same time.

    Args:
        game: The game.
        deadline_s: Seconds for each call of the game, above 0.
    """

    def __init__(self, game: Game, *, deadline_s: float = 60.0) -> None:
        self._game = game
        self._boundary = Boundary(type(game).__name__, deadline_s=deadline_s)
        self.players = tuple(game.players)
        self._due: frozenset[str] = frozenset()
        self._actions: dict[str, str] = {}
        self._waiting: dict[str, asyncio.Future[Step]] = {}
        self._rewards = dict.fromkeys(self.players, 0.0)
        self._fault: EnvironmentFault | None = None
        self._opening: asyncio.Task[None] | None = None

    def seat(self, player: str) -> "Seat":
        """The environment that a player plays in.

        Raises:
            AgenticError: There is no such player.
        """
        if player not in self.players:
            raise AgenticError(f"there is no player {player!r}; there are {', '.join(self.players)}")
        return Seat(self, player)

    def abandon(self, reason: str) -> None:
        """End the game for all who still play, without a verdict."""
        self._fail(EnvironmentFault("abandoned", reason))

    def close(self) -> None:
        """Let go of the game."""
        self._boundary.close()

    async def first(self, player: str, seed: int) -> Reset:
        """The first observation of a player, once it is their turn.

        Raises:
            EnvironmentFault: The game broke.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open(seed))
        if self._fault is not None:
            raise self._fault
        # The game may have told the player before they asked.
        future = self._waiting.pop(player, None) or self._wait(player)
        observation, _, over, _, info = await future
        if over:
            # Nothing was left to decide: told by an empty turn, which the next step ends.
            self._waiting[player] = _resolved((observation, self._take(player), True, False, info))
        return observation, {**info, "player": player}

    async def act(self, player: str, action: str) -> Step:
        """What a player's action leads to, at their next turn or the end.

        Raises:
            EnvironmentFault: The game broke, or another player left it.
        """
        if player in self._waiting:
            return await self._waiting.pop(player)
        if player not in self._due:
            raise AgenticError(f"it is not the turn of player {player!r}; it is that of {sorted(self._due)}")
        future = self._wait(player)
        self._actions[player] = action
        if frozenset(self._actions) == self._due:
            await self._round()
        observation, reward, terminated, truncated, info = await future
        return observation, reward, terminated, truncated, {**info, "player": player}

    def _wait(self, player: str) -> "asyncio.Future[Step]":
        if self._fault is not None:
            raise self._fault
        self._waiting[player] = asyncio.get_running_loop().create_future()
        return self._waiting[player]

    async def _open(self, seed: int) -> None:
        try:
            answer = await self._boundary.call(
                "reset", functools.partial(self._game.reset, seed=seed), within_s=math.inf
            )
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise self._boundary.invalid("reset", "(observations, info)", answer)
            # A cycle of the loop, so that every seat has come.
            await asyncio.sleep(0)
            self._tell(*answer, over=(False, False))
        except EnvironmentFault as fault:
            self._fail(fault)

    async def _round(self) -> None:
        actions, self._actions = dict(self._actions), {}
        try:
            answer = await self._boundary.call(
                "step", functools.partial(self._game.step, actions), within_s=math.inf
            )
            if not isinstance(answer, tuple) or len(answer) != 5:
                raise self._boundary.invalid(
                    "step", "(observations, rewards, terminated, truncated, info)", answer
                )
            observations, rewards, terminated, truncated, info = answer
            if not isinstance(rewards, Mapping) or not set(rewards) <= set(self.players):
                raise self._boundary.invalid("step", f"rewards of {', '.join(self.players)}", rewards)
            for player, reward in rewards.items():
                self._rewards[player] += reward
            self._tell(observations, info, over=(bool(terminated), bool(truncated)))
        except EnvironmentFault as fault:
            self._fail(fault)

    def _tell(self, observations: object, info: Info, *, over: tuple[bool, bool]) -> None:
        """Answer those who act next, or everyone when the game is over."""
        known = isinstance(observations, Mapping) and set(observations) <= set(self.players)
        if not isinstance(observations, Mapping) or not known or not (observations or any(over)):
            raise self._boundary.invalid("step", f"observations of {', '.join(self.players)}", observations)
        self._due = frozenset() if any(over) else frozenset(observations)
        for player in self.players if any(over) else observations:
            step = (observations.get(player, ""), self._take(player), *over, info)
            future = self._waiting.get(player)
            if future is not None and not future.done():
                del self._waiting[player]
                future.set_result(step)
            else:
                self._waiting[player] = _resolved(step)

    def _take(self, player: str) -> float:
        reward, self._rewards[player] = self._rewards[player], 0.0
        return reward

    def _fail(self, fault: EnvironmentFault) -> None:
        self._fault = self._fault or fault
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(fault)
                # Its player may be gone: the fault is then told to nobody.
                future.exception()
        self._waiting.clear()


class Seat:
    """One player's side of a table, as an environment for a single game."""

    def __init__(self, table: Table, player: str) -> None:
        self._table = table
        self._player = player

    async def reset(self, *, seed: int) -> Reset:
        """Wait for the player's first turn; all seats must be given the same seed."""
        return await self._table.first(self._player, seed)

    async def step(self, action: str, /) -> Step:
        """Act, and wait for the next turn or the end."""
        return await self._table.act(self._player, action)


class SoloGame:
    """A game as an environment for one player; the others are played by fixed policies.

    Args:
        game: The game.
        player: Who is trained.
        opponents: A policy for each other player; `info["player"]` tells a policy who it is.

    Raises:
        AgenticError: A player has no policy, or one too many.
    """

    def __init__(self, game: Game, *, player: str, opponents: Mapping[str, Policy]) -> None:
        others = set(game.players) - {player}
        if player not in game.players or set(opponents) != others:
            raise AgenticError(
                f"SoloGame needs a player of {', '.join(game.players)} and opponents for the others, "
                f"got {player!r} and {sorted(opponents)}"
            )
        self._game = game
        self._player = player
        self._opponents = opponents
        self._table: Table | None = None
        self._playing: list[asyncio.Task[Episode]] = []

    async def reset(self, *, seed: int) -> Reset:
        """Start a game and let the others play until it is this player's turn."""
        await self.close()
        self._table = Table(self._game)
        self._playing = [
            asyncio.ensure_future(_play(self._table, name, policy, seed, max_turns=10_000))
            for name, policy in self._opponents.items()
        ]
        return await self._table.seat(self._player).reset(seed=seed)

    async def step(self, action: str, /) -> Step:
        """Act, and let the others play until the next turn.

        Raises:
            AgenticError: No game is going on.
        """
        if self._table is None:
            raise AgenticError("SoloGame has no game going on; call reset before step")
        answer = await self._table.seat(self._player).step(action)
        if answer[2] or answer[3]:
            await self.close()
        return answer

    async def close(self) -> None:
        """End the game that goes on, if there is one."""
        if self._table is not None:
            self._table.abandon("the game was closed")
            self._table.close()
            self._table = None
        await asyncio.gather(*self._playing, return_exceptions=True)
        self._playing = []


async def run_game(
    game: Game, policies: Mapping[str, Policy], *, seed: int, max_turns: int, act_deadline_s: float = 600.0
) -> dict[str, Episode]:
    """Play one game; give one policy to several players for self-play.

    Args:
        game: Not used by anyone else meanwhile.
        policies: A policy for each player; `info["player"]` tells it who it is.
        seed: Given to `Game.reset`.
        max_turns: How often each player may act, at least 1; the game is abandoned beyond.
        act_deadline_s: Seconds for each call of a policy, above 0.

    Returns:
        An episode for each player. When one breaks or runs out of turns, the others' end without a
        verdict.

    Raises:
        AgenticError: A player has no policy, or an argument is out of its range.
    """
    if set(policies) != set(game.players):
        raise AgenticError(f"run_game needs policies for {sorted(game.players)}, got {sorted(policies)}")
    table = Table(game)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(
                    _play(table, name, policies[name], seed, max_turns=max_turns, deadline_s=act_deadline_s)
                )
                for name in table.players
            }
    finally:
        table.close()
    return {name: task.result() for name, task in tasks.items()}


async def _play(
    table: Table, name: str, policy: Policy, seed: int, *, max_turns: int, deadline_s: float = 600.0
) -> Episode:
    """One player's episode; the table is abandoned when it ends before the game does."""
    # A seat waits for the other players, so for as long as all of them may take.
    patience_s = deadline_s * len(table.players) + 120.0
    episode = await run_episode(
        table.seat(name),
        policy,
        seed=seed,
        max_turns=max_turns,
        reset_retries=0,
        step_deadline_s=patience_s,
        act_deadline_s=deadline_s,
    )
    if episode.status not in ("done", "truncated"):
        table.abandon(f"player {name!r} left the game ({episode.status})")
    return episode


def _resolved(step: Step) -> "asyncio.Future[Step]":
    future: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
    future.set_result(step)
    return future
