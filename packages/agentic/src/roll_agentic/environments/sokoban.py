"""Sokoban: push boxes onto goals. Levels are generated backwards from the solution, so each can be solved."""

import random
from collections.abc import Iterable

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.environments.frozen_lake import MOVES
from roll_agentic.environments.grid_info import grid_info
from roll_agentic.errors import AgenticError

_INSTRUCTIONS = (
    "Push every box onto a goal: # wall, _ floor, O goal, X box, * box on goal, P you, S you on goal. Say "
    "one of left, down, right, up to move; walking into a box pushes it if the cell behind it is free."
)
_ATTEMPTS = 200
Cell = tuple[int, int]


class Sokoban:
    """A level of `rows` x `columns` cells with `boxes` boxes that belongs to the seed.

    Args:
        rows: Rows with the walls, at least 5.
        columns: Columns with the walls, at least 5.
        boxes: Boxes, at least 1; they and the player take at most a third of the inner cells.
        pulls: How often a box is pulled away from its goal when the level is made, at least 1.
        max_steps: Moves until the episode is truncated, at least 1.
        step_reward: Reward of every move, such as -0.1.
        box_reward: Reward for a box that gets onto a goal, taken back when it leaves it.
        pictures: Whether `info["image"]` has a picture.

    Raises:
        AgenticError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        rows: int = 6,
        columns: int = 6,
        boxes: int = 1,
        pulls: int = 10,
        max_steps: int = 50,
        step_reward: float = 0.0,
        box_reward: float = 0.0,
        pictures: bool = False,
    ) -> None:
        fits = rows >= 5 and columns >= 5 and boxes >= 1 and 3 * (boxes + 1) <= (rows - 2) * (columns - 2)
        if not fits or pulls < 1 or max_steps < 1:
            raise AgenticError(
                "Sokoban needs rows and columns of at least 5, boxes that leave two thirds of the inner "
                f"cells free, pulls and max_steps of at least 1; got rows={rows}, columns={columns}, "
                f"boxes={boxes}, pulls={pulls}, max_steps={max_steps}"
            )
        self._rows, self._columns, self._boxes_count, self._pulls = rows, columns, boxes, pulls
        self._max_steps, self._pictures = max_steps, pictures
        self._step_reward, self._box_reward = step_reward, box_reward
        self._walls: frozenset[Cell] = frozenset()
        self._goals: frozenset[Cell] = frozenset()
        self._boxes: set[Cell] = set()
        self._player: Cell = (0, 0)
        self._left = 0

    def reset(self, *, seed: int) -> Reset:
        """Make the level that belongs to the seed."""
        chance = random.Random(seed)
        for _ in range(_ATTEMPTS):
            self._lay_out(chance)
            self._pull_away(chance)
            if not self._boxes <= self._goals:
                break
        else:
            raise AgenticError(f"no Sokoban level was found for seed {seed} in {_ATTEMPTS} attempts")
        self._left = self._max_steps
        return self._board(), self._info(is_valid=True)

    def step(self, action: str, /) -> Step:
        """Move, and push if there is a box.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._left == 0:
            raise AgenticError("Sokoban has no episode going on; call reset before step")
        self._left -= 1
        move = marked_answer(action).lower()
        placed = len(self._boxes & self._goals)
        if move in MOVES:
            self._push(MOVES[move])
        solved = self._boxes == self._goals
        reward = self._step_reward + self._box_reward * (len(self._boxes & self._goals) - placed) + solved
        truncated = not solved and self._left == 0
        if solved:
            self._left = 0
        return self._board(), float(reward), solved, truncated, self._info(is_valid=move in MOVES)

    def _push(self, move: Cell) -> None:
        ahead = _shift(self._player, move)
        if ahead in self._boxes:
            behind = _shift(ahead, move)
            if behind in self._walls or behind in self._boxes:
                return
            self._boxes.remove(ahead)
            self._boxes.add(behind)
        elif ahead in self._walls:
            return
        self._player = ahead

    def _lay_out(self, chance: random.Random) -> None:
        """Draw some inner walls, goals with a box on each, and the player."""
        every = [(r, c) for r in range(self._rows) for c in range(self._columns)]
        inner = [(r, c) for r, c in every if 0 < r < self._rows - 1 and 0 < c < self._columns - 1]
        chance.shuffle(inner)
        taken = self._boxes_count + 1
        blocks = chance.randint(0, len(inner) // 6)
        self._goals = frozenset(inner[: self._boxes_count])
        self._boxes = set(self._goals)
        self._player = inner[self._boxes_count]
        self._walls = frozenset(set(every) - set(inner[:taken]) - set(inner[taken + blocks :]))

    def _pull_away(self, chance: random.Random) -> None:
        """Walk backwards from the solution: each pull can be undone by a push, so the level can be solved."""
        for _ in range(self._pulls):
            options = sorted(self._possible_pulls())
            if not options:
                return
            box, move = chance.choice(options)
            beside = _shift(box, move)
            self._boxes.remove(box)
            self._boxes.add(beside)
            self._player = _shift(beside, move)
        reachable = sorted(self._reachable())
        self._player = chance.choice(reachable)

    def _possible_pulls(self) -> Iterable[tuple[Cell, Cell]]:
        """Boxes and the direction in which the player can pull them from where they can walk to."""
        reachable = self._reachable()
        for box in self._boxes:
            for move in MOVES.values():
                beside = _shift(box, move)
                target = _shift(beside, move)
                if beside in reachable and target not in self._walls and target not in self._boxes:
                    yield box, move

    def _reachable(self) -> set[Cell]:
        seen, todo = {self._player}, [self._player]
        while todo:
            cell = todo.pop()
            for move in MOVES.values():
                other = _shift(cell, move)
                if other not in seen and other not in self._walls and other not in self._boxes:
                    seen.add(other)
                    todo.append(other)
        return seen

    def _board(self) -> str:
        return "\n".join(
            "".join(self._mark((row, column)) for column in range(self._columns)) for row in range(self._rows)
        )

    def _mark(self, cell: Cell) -> str:
        if cell in self._walls:
            return "#"
        on_goal = cell in self._goals
        if cell in self._boxes:
            return "*" if on_goal else "X"
        if cell == self._player:
            return "S" if on_goal else "P"
        return "O" if on_goal else "_"

    def _info(self, *, is_valid: bool) -> dict[str, object]:
        return grid_info(
            self._board(),
            instructions=_INSTRUCTIONS,
            actions=MOVES,
            is_valid=is_valid,
            pictures=self._pictures,
            boxes_on_goals=len(self._boxes & self._goals),
        )


def _shift(cell: Cell, move: Cell) -> Cell:
    return cell[0] + move[0], cell[1] + move[1]
