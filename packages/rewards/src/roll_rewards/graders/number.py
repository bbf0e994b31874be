"""Grader `number`: the last number in the response is the reference's, compared exactly.

Numbers are read into fractions, so `0.5`, `1/2`, `\\frac{1}{2}` and `5e-1` are equal and 0.1 + 0.2 is
0.3. A number of absurd size is not read at all, so that a hostile response costs no more than another.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from roll_rewards.errors import RewardError
from roll_rewards.numerals import last_number
from roll_rewards.scores import REAL_TYPES, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """1 if the last number in the response is the reference, else 0; unread responses score 0.

    Understood are signs, thousands separators (`1,000`), decimals, fractions (`3/4`, `1 1/2`,
    `\\frac{3}{4}`), powers (`2^10`) and scientific notation (`1.5e3`, `1.5 x 10^3`). Units,
    currency and percent signs are ignored: `25%` is 25. A number of more than 400 digits, or with an
    exponent beyond 400, counts as unread.

    Attributes:
        abs_tolerance: Largest accepted distance from the reference, at least 0.
        rel_tolerance: Largest accepted distance divided by the reference's size, at least 0. The
            larger of the two tolerances applies; both 0 demands equality.

    Raises:
        RewardError: A tolerance is below 0, or (when grading) no number can be read from the reference.
    """

    abs_tolerance: float = 0.0
    rel_tolerance: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("abs_tolerance", self.abs_tolerance), ("rel_tolerance", self.rel_tolerance)):
            if not 0 <= value < float("inf"):
                raise RewardError(f"option {name!r} of grader 'number' must be at least 0, got {value}")

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the number as written in the response. See `Grader.grade`."""
        target = _reference_number(reference)
        found = last_number(response)
        if found is None:
            return Score(value=0.0)
        written, number = found
        tolerance = max(_decimal(self.abs_tolerance), _decimal(self.rel_tolerance) * abs(target))
        return Score(value=float(abs(number - target) <= tolerance), parsed=written)


def _reference_number(reference: object) -> Fraction:
    """The number that the data set says is right.

    Raises:
        RewardError: It is not a finite number nor a text with a readable one.
    """
    # str() of a float is the shortest decimal that means it: 0.1 is one tenth, as its author meant.
    readable = isinstance(reference, (str, *REAL_TYPES)) and not isinstance(reference, bool | np.bool_)
    found = last_number(str(reference)) if readable else None
    if found is None:
        raise RewardError(
            "the reference of grader 'number' must be a finite number or a text with a number in it, "
            f"got {type(reference).__name__} {reference!r:.80}"
        )
    return found[1]


def _decimal(value: float) -> Fraction:
    return Fraction(str(value))
