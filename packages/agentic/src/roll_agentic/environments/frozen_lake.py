"""FrozenLake: across a frozen lake to the goal without falling into a hole. Text or pictures."""

import random
from collections import deque
from collections.abc import Sequence

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.environments.grid_info import grid_info
from roll_agentic.errors import AgenticError

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_SIDES = {"left": ("up", "down"), "right": ("up", "down"), "up": ("left", "right"), "down": ("left", "right")}
_ATTEMPTS = 100
_INSTRUCTIONS = (
    "You stand on a frozen lake: P is you, G the goal, O a hole, _ ice. Say one of left, down, right, up to "
    "move. Reach the goal; a hole ends the game."
)


class FrozenLake:
    """A lake of `size` x `size` cells that belongs to the seed and always has a way to the goal.

    Rules are those of Gymnasium's environment of this name: from the upper left to the lower right,
    a move against the edge stays, reward 1 at the goal. On slippery ice a move goes each way that is
    not backwards with probability 1/3.

    Args:
        size: Cells of a side, at least 2.
        holes: Probability that a cell is a hole, 0..0.8.
        slippery: Whether the ice is slippery.
        max_steps: Moves until the episode is truncated, at least 1.
        pictures: Whether `info["image"]` has a picture.

    Raises:
        AgenticError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        size: int = 4,
        holes: float = 0.2,
        slippery: bool = False,
        max_steps: int = 100,
        pictures: bool = False,
    ) -> None:
        if size < 2 or not 0 <= holes <= 0.8 or max_steps < 1:
            raise AgenticError(
                "FrozenLake needs size of at least 2, holes from 0 to 0.8 and max_steps of at least 1, "
                f"got {size}, {holes}, {max_steps}"
            )
        self._size, self._holes, self._slippery = size, holes, slippery
        self._max_steps, self._pictures = max_steps, pictures
        self._lake: list[str] = []
        self._at = (0, 0)
        self._left = 0
        self._chance = random.Random(0)

    def reset(self, *, seed: int) -> Reset:
        """Freeze the lake that belongs to the seed and stand in its upper left corner."""
        self._chance = random.Random(seed)
        lakes = (self._draw() for _ in range(_ATTEMPTS))
        lake = next((drawn for drawn in lakes if has_path(drawn)), None) or self._carved(self._draw())
        self._lake, self._at, self._left = lake, (0, 0), self._max_steps
        return self._board(), self._info(is_valid=True)

    def step(self, action: str, /) -> Step:
        """Move.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._left == 0:
            raise AgenticError("FrozenLake has no episode going on; call reset before step")
        self._left -= 1
        move = marked_answer(action).lower()
        is_valid = move in MOVES
        if is_valid:
            if self._slippery:
                move = self._chance.choice((move, *_SIDES[move]))
            rows, columns = MOVES[move]
            last = self._size - 1
            self._at = (min(max(self._at[0] + rows, 0), last), min(max(self._at[1] + columns, 0), last))
        cell = self._lake[self._at[0]][self._at[1]]
        terminated = cell in "OG"
        truncated = not terminated and self._left == 0
        if terminated:
            self._left = 0
        return self._board(), float(cell == "G"), terminated, truncated, self._info(is_valid=is_valid)

    def _draw(self) -> list[str]:
        last = self._size - 1
        rows = [
            ["O" if self._chance.random() < self._holes else "_" for _ in range(self._size)]
            for _ in range(self._size)
        ]
        rows[0][0], rows[last][last] = "_", "G"
        return ["".join(row) for row in rows]

    def _carved(self, lake: list[str]) -> list[str]:
        """A lake with so many holes that none had a way, with a random way frozen into it."""
        last = self._size - 1
        way = ["down"] * last + ["right"] * last
        self._chance.shuffle(way)
        rows, at = [list(line) for line in lake], (0, 0)
        for move in way[:-1]:
            at = (at[0] + MOVES[move][0], at[1] + MOVES[move][1])
            rows[at[0]][at[1]] = "_"
        return ["".join(row) for row in rows]

    def _board(self) -> str:
        """The lake with the player in it; `X` in a hole, `V` at the goal."""
        row, column = self._at
        mark = {"O": "X", "G": "V"}.get(self._lake[row][column], "P")
        lines = list(self._lake)
        lines[row] = lines[row][:column] + mark + lines[row][column + 1 :]
        return "\n".join(lines)

    def _info(self, *, is_valid: bool) -> dict[str, object]:
        return grid_info(
            self._board(),
            instructions=_INSTRUCTIONS,
            actions=MOVES,
            is_valid=is_valid,
            pictures=self._pictures,
        )


def has_path(lake: Sequence[str]) -> bool:
    """Whether the goal `G` can be reached from the upper left without crossing a hole `O`."""
    seen, todo = {(0, 0)}, deque([(0, 0)])
    while todo:
        row, column = todo.popleft()
        if lake[row][column] == "G":
            return True
        for down, right in MOVES.values():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < len(lake) and 0 <= cell[1] < len(lake[0])
            if inside and cell not in seen and lake[cell[0]][cell[1]] != "O":
                seen.add(cell)
                todo.append(cell)
    return False
