"""Mathematics with one exact answer, with or without a Python tool; problems are generated or given."""

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction

from roll_agentic.environment import Environment, Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError
from roll_agentic.tools.environment import ToolEnvironment
from roll_agentic.tools.python import PythonTool, Sandbox
from roll_agentic.tools.toolbox import Toolbox

_INSTRUCTIONS = "Solve the problem and give the final answer as one number in \\boxed{}."


class Maths:
    """One problem, one answer: reward 1 if the number in `\\boxed{}` (or `<answer>`) is exactly right.

    Args:
        problems: Problems as `{"question": ..., "answer": ...}`, the answer a number or its text, of
            which the seed picks one; None for generated ones (sums of divisors, remainders of powers,
            products, counting), which are too long for the head and short for a program.

    Raises:
        AgenticError: A problem lacks a field or its answer is not a number.
    """

    def __init__(self, *, problems: Sequence[Mapping[str, object]] | None = None) -> None:
        self._given: list[tuple[str, Fraction]] | None = None
        if problems is not None:
            self._given = [_problem(index, problem) for index, problem in enumerate(problems)]
            if not self._given:
                raise AgenticError("Maths needs at least one problem, got none")
        self._answer: Fraction | None = None

    def reset(self, *, seed: int) -> Reset:
        """Pose the problem that belongs to the seed."""
        chance = random.Random(seed)
        question, self._answer = chance.choice(self._given) if self._given else _generated(chance)
        return question, {"instructions": _INSTRUCTIONS, "state": question}

    def step(self, action: str, /) -> Step:
        """Judge the answer.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._answer is None:
            raise AgenticError("Maths has no episode going on; call reset before step")
        wanted, self._answer = self._answer, None
        given = _number(marked_answer(action))
        return "", float(given == wanted), True, False, {"action_is_valid": given is not None}


def maths_with_python(
    *,
    sandbox: Sandbox,
    problems: Sequence[Mapping[str, object]] | None = None,
    calls: int = 4,
    seconds: float = 5.0,
    parser: str = "python",
) -> Environment:
    """Mathematics with the tool `python(code)`.

    Args:
        sandbox: Where programs run.
        problems: As for `Maths`.
        calls: How many programs an episode may run, at least 0.
        seconds: Time limit of a program, above 0.
        parser: How calls are written; see `PARSERS`.

    Raises:
        AgenticError: An argument is out of its range.
    """
    tools = Toolbox([PythonTool(sandbox, seconds=seconds)], deadline_s=seconds + 30.0)
    return ToolEnvironment(Maths(problems=problems), tools, parser=parser, budget=calls)


def _problem(index: int, problem: Mapping[str, object]) -> tuple[str, Fraction]:
    question, answer = problem.get("question"), _number(str(problem.get("answer")))
    if not isinstance(question, str) or answer is None:
        raise AgenticError(
            f"problem {index} needs a text 'question' and a number 'answer', got {dict(problem)}"
        )
    return question, answer


def _number(text: str) -> Fraction | None:
    """A whole, decimal or fractional number; None for anything else."""
    plain = text.replace(",", "").replace("$", "").replace(" ", "").rstrip(".")
    if len(plain) > 100 or "e" in plain.lower():
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def _generated(chance: random.Random) -> tuple[str, Fraction]:
    kind = chance.randrange(4)
    if kind == 0:
        number = chance.randint(200, 5000)
        total = sum(d + (number // d if d * d != number else 0)
                    for d in range(1, math.isqrt(number) + 1) if number % d == 0)  # fmt: skip
        return f"What is the sum of all positive divisors of {number}?", Fraction(total)
    if kind == 1:
        base, power, modulus = chance.randint(2, 99), chance.randint(50, 500), chance.randint(11, 997)
        return f"What is the remainder of {base}^{power} divided by {modulus}?", Fraction(
            pow(base, power, modulus)
        )
    if kind == 2:
        one, other, third = (chance.randint(100, 999) for _ in range(3))
        return f"What is {one} * {other} - {third}?", Fraction(one * other - third)
    most, digit = chance.randint(300, 3000), chance.randint(1, 9)
    count = sum(str(n).count(str(digit)) for n in range(1, most + 1))
    return f"How often is the digit {digit} written in the numbers from 1 to {most}?", Fraction(count)
