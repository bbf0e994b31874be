"""Number guessing: the smallest task that takes several turns and can be solved by reasoning."""

import random
import re

from roll_agentic.environment import Reset, Step
from roll_agentic.errors import AgenticError


class NumberGuessing:
    """A secret number 0..`numbers` - 1 is found within `turns` guesses.

    The policy says one number a turn. The environment answers `<` (the secret is smaller), `>` (it is
    greater) or `!` (found); `?` asks for a number, at first and after anything that is not one in
    range, which uses up the turn. The reward is 1 for the guess that finds the secret, else 0. The
    last guess ends the episode as a loss by the rules of the game (`terminated`).

    Args:
        numbers: How many numbers there are, at least 1.
        turns: How many guesses there are, at least 1.

    Raises:
        AgenticError: `numbers` or `turns` is not a whole number of at least 1.
    """

    def __init__(self, *, numbers: int = 16, turns: int = 5) -> None:
        for name, value in (("numbers", numbers), ("turns", turns)):
            if type(value) is not int or value < 1:
                raise AgenticError(f"NumberGuessing needs {name} of at least 1, got {value!r}")
        self._numbers = numbers
        self._turns = turns
        self._secret = 0
        self._turns_left = 0
        self._possible = range(0)

    def reset(self, *, seed: int) -> Reset:
        """Draw the secret that belongs to the seed; `info["instructions"]` states the rules."""
        self._secret = int(random.Random(seed).random() * self._numbers)
        self._turns_left = self._turns
        self._possible = range(self._numbers)
        instructions = (
            f"Find a secret number from 0 to {self._numbers - 1} with at most {self._turns} guesses. "
            "Say one number at a time. The answer < means that the secret is smaller, > that it is greater."
        )
        return "?", {"instructions": instructions, "state": self._state()}

    def step(self, action: str, /) -> Step:
        """Answer one guess.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._turns_left == 0:
            raise AgenticError("NumberGuessing has no episode going on; call reset before step")
        self._turns_left -= 1
        guess = self._guess(action)
        found = guess == self._secret
        if guess is None:
            observation = "?"
        elif found:
            observation = "!"
        else:
            observation = "<" if self._secret < guess else ">"
            possible = self._possible
            if self._secret < guess:
                self._possible = range(possible.start, min(guess, possible.stop))
            else:
                self._possible = range(max(guess + 1, possible.start), possible.stop)
        if found:
            self._turns_left = 0
        info = {"action_is_valid": guess is not None, "state": self._state()}
        return observation, float(found), self._turns_left == 0, False, info

    def _state(self) -> str:
        """The numbers that the answers leave possible, and the guesses that are left."""
        possible = self._possible
        return f"{possible.start}..{possible.stop - 1}, {self._turns_left} left"

    def _guess(self, action: str) -> int | None:
        """The number that the action is, None when it is none or out of range."""
        text = action.strip()
        if not re.fullmatch(r"[0-9]{1,18}", text):
            return None
        number = int(text)
        return number if number < self._numbers else None
