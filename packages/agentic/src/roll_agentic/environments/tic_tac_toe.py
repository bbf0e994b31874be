"""Tic-tac-toe: the smallest game of two players, for self-play or against a player that moves at random."""

import random
import re
from collections.abc import Mapping

from roll_agentic.errors import AgenticError
from roll_agentic.game import GameReset, GameStep, SoloGame
from roll_agentic.policy import EpisodeState, Turn

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_INSTRUCTIONS = (
    "Tic-tac-toe. Cells are numbered 1 to 9, row by row. Say the number of an empty cell to put your mark "
    "there; three of a row, column or diagonal win. Anything else than an empty cell's number loses."
)


class TicTacToe:
    """The game for the players `X` and `O`; who begins belongs to the seed.

    The winner gets 1, the loser -1, a draw is 0. A move that is not an empty cell's number loses.
    """

    players = ("X", "O")

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._due = ""

    def reset(self, *, seed: int) -> GameReset:
        """Draw who begins and show them the empty board."""
        self._cells = ["."] * 9
        self._due = random.Random(seed).choice(self.players)
        return {self._due: self._board()}, self._info(is_valid=True)

    def step(self, actions: Mapping[str, str], /) -> GameStep:
        """Put a mark of the player who is due.

        Raises:
            AgenticError: No game is going on, or others than that player act.
        """
        if not self._due or set(actions) != {self._due}:
            raise AgenticError(
                f"TicTacToe waits for {self._due or 'a reset'}, got moves of {sorted(actions)}"
            )
        mover = self._due
        other = "O" if mover == "X" else "X"
        cell = self._cell(actions[mover])
        if cell is None:
            return self._over({mover: -1.0, other: 1.0}, is_valid=False)
        self._cells[cell] = mover
        if any(all(self._cells[at] == mover for at in line) for line in _LINES):
            return self._over({mover: 1.0, other: -1.0})
        if "." not in self._cells:
            return self._over({mover: 0.0, other: 0.0})
        self._due = other
        return {other: self._board()}, {}, False, False, self._info(is_valid=True)

    def _over(self, rewards: Mapping[str, float], *, is_valid: bool = True) -> GameStep:
        self._due = ""
        return dict.fromkeys(self.players, self._board()), rewards, True, False, self._info(is_valid=is_valid)

    def _cell(self, action: str) -> int | None:
        """Index of the empty cell that an action names, None when it names none."""
        text = action.strip()
        if not re.fullmatch("[1-9]", text) or self._cells[int(text) - 1] != ".":
            return None
        return int(text) - 1

    def _board(self) -> str:
        return "\n".join("".join(self._cells[row : row + 3]) for row in (0, 3, 6))

    def _info(self, *, is_valid: bool) -> dict[str, object]:
        empty = [str(cell + 1) for cell, mark in enumerate(self._cells) if mark == "."]
        return {
            "instructions": _INSTRUCTIONS,
            "action_is_valid": is_valid,
            "actions": empty,
            "state": f"{self._due}|{''.join(self._cells)}",
        }


class RandomPlayer:
    """Says one of `info["actions"]`, by chance that belongs to the seed, the turn and the player."""

    async def act(self, state: EpisodeState) -> Turn:
        """A random valid action.

        Raises:
            AgenticError: The environment names no valid actions.
        """
        actions = state.info.get("actions")
        if not isinstance(actions, list | tuple) or not actions:
            raise AgenticError(
                "RandomPlayer needs an environment that names valid actions in info['actions']"
            )
        chance = random.Random(f"{state.seed}/{state.turn}/{state.info.get('player')}")
        return Turn(response=str(chance.choice(actions)))


def solo_tic_tac_toe(*, player: str = "X") -> SoloGame:
    """Tic-tac-toe as an environment for one player, against one that moves at random.

    Args:
        player: `X` or `O`.

    Raises:
        AgenticError: There is no such player.
    """
    game = TicTacToe()
    return SoloGame(game, player=player, opponents={n: RandomPlayer() for n in game.players if n != player})
