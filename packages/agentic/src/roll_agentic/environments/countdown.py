"""Countdown: reach a target number from given numbers with the four basic operations."""

import ast
import random
import re
from collections import Counter
from fractions import Fraction

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError

_LONGEST_EXPRESSION = 300
# Python's parser is not to be trusted with deep nesting.
_MOST_PARENTHESES = 40
_NO_EXPRESSION = "That is no expression of numbers with + - * / and parentheses."


class Countdown:
    """An expression from the given numbers that equals the target, within some attempts.

    Numbers and target are drawn forwards from a random expression, so each task can be solved. Every
    number must be used exactly once. The reward is 1 for a correct expression, else 0.

    Args:
        numbers: How many numbers there are, at least 2.
        largest: Largest number, at least 2.
        attempts: How many expressions may be tried, at least 1.

    Raises:
        AgenticError: An argument is out of its range.
    """

    def __init__(self, *, numbers: int = 4, largest: int = 20, attempts: int = 1) -> None:
        for name, value, least in (
            ("numbers", numbers, 2),
            ("largest", largest, 2),
            ("attempts", attempts, 1),
        ):
            if value < least:
                raise AgenticError(f"Countdown needs {name} of at least {least}, got {value}")
        self._count, self._largest, self._attempts = numbers, largest, attempts
        self._numbers: list[int] = []
        self._target = 0
        self._left = 0

    def reset(self, *, seed: int) -> Reset:
        """Draw the task that belongs to the seed."""
        chance = random.Random(seed)
        self._numbers = [chance.randint(1, self._largest) for _ in range(self._count)]
        value = self._numbers[0]
        for number in self._numbers[1:]:
            options = [value + number, value * number, abs(value - number)]
            if value % number == 0:
                options.append(value // number)
            small = [option for option in options if 0 < option <= 50 * self._largest]
            value = chance.choice(small or [value + number])
        self._target = value
        chance.shuffle(self._numbers)
        self._left = self._attempts
        numbers = ", ".join(map(str, self._numbers))
        instructions = (
            f"Use each of the numbers {numbers} exactly once, with + - * / and parentheses, to make "
            f"{self._target}. Say the expression in <answer> </answer>."
        )
        state = f"{sorted(self._numbers)} -> {self._target}"
        return f"Numbers: {numbers}. Target: {self._target}.", {"instructions": instructions, "state": state}

    def step(self, action: str, /) -> Step:
        """Judge one expression.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._left == 0:
            raise AgenticError("Countdown has no episode going on; call reset before step")
        self._left -= 1
        problem, value = _evaluate(marked_answer(action), self._numbers)
        solved = not problem and value == self._target
        if solved:
            self._left = 0
        observation = "Correct." if solved else problem or f"That makes {value}, not {self._target}."
        return observation, float(solved), self._left == 0, False, {"action_is_valid": not problem}


def _evaluate(text: str, numbers: list[int]) -> tuple[str, Fraction | None]:
    """What is wrong with an expression, empty if nothing, and its exact value."""
    text = text.split("=")[0].strip()
    if not text or len(text) > _LONGEST_EXPRESSION:
        return f"An expression of 1 to {_LONGEST_EXPRESSION} characters is needed.", None
    if not re.fullmatch(r"[0-9+*/() .-]+", text) or text.count("(") > _MOST_PARENTHESES:
        return _NO_EXPRESSION, None
    try:
        tree = ast.parse(text, mode="eval").body
        used: list[int] = []
        value = _value(tree, used)
    except ZeroDivisionError:
        return "The expression divides by zero.", None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return _NO_EXPRESSION, None
    if Counter(used) != Counter(numbers):
        return f"The numbers {', '.join(map(str, numbers))} must each be used exactly once.", None
    return "", value


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """The value of a syntax tree; appends the numbers in it.

    Raises:
        ValueError: There is something else in it than whole numbers and the four operations.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, used), _value(node.right, used)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
    raise ValueError(f"{type(node).__name__} is not allowed")
