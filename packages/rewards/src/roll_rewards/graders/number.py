"""Grader `number`: the last number in the response is the reference's, compared exactly.

Numbers are read into fractions, so `0.5`, `1/2`, `\\frac{1}{2}` and `5e-1` are equal and 0.1 + 0.2 is
0.3. A number of absurd size is not read at all, so that a hostile response costs no more than another.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from roll_rewards.errors import RewardError
from roll_rewards.scores import REAL_TYPES, Score

# A number is read within this many characters before the response's last digit.
_WINDOW = 2000
# `}}` of a LaTeX fraction or power may follow the last digit.
_TAIL = 4
_MAX_DIGITS = 400
_MAX_EXPONENT = 400

_NUMBER = re.compile(
    r"""
    (?<![0-9A-Za-z]) (?<![0-9]\.) (?<![0-9A-Za-z]_)     # not inside a word, a version or an identifier
    (?: (?<![)\]}]) (?P<sign>[+\-−]) )?                 # after a digit or a bracket it is an operator
    (?:
        (?: (?P<whole>[0-9]+) [ ]? )?
        \\[dt]?frac (?: \{(?P<over>[0-9]+)\}\{(?P<under>[0-9]+)\} | (?P<over1>[0-9])(?P<under1>[0-9]) )
      |
        (?P<mixed>[0-9]+) [ ] (?P<over2>[0-9]+) / (?P<under2>[0-9]+) (?! [./]?[0-9])
      |
        (?P<plain>
            (?:
                [0-9]{1,3} (?P<mark>[,\u00a0\u2009\u202f]) [0-9]{3} (?:(?P=mark)[0-9]{3})* (?![0-9])
              | [0-9]+
            )
            (?: \. [0-9]+ )?
          |
            (?<!\.) \. [0-9]+
        )
        (?:
            [eE] (?P<exponent>[+\-−]?[0-9]+) (?![0-9A-Za-z])
          | [ ]? (?:x|×|\*|·|\\times|\\cdot) [ ]? 10 [ ]? (?:\^|\*\*) [ ]? \{? (?P<ten>[+\-−]?[0-9]+) \}?
          | [ ]? (?:\^|\*\*) [ ]? \{? (?P<power>[+\-−]?[0-9]+) \}?
          | [ ]? / [ ]? (?P<divisor>[0-9]+(?:\.[0-9]+)?) (?! [./]?[0-9])
        )?
    )
    """,
    re.VERBOSE,
)


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


def last_number(text: str) -> tuple[str, Fraction] | None:
    """The last number in a text, as written and as a fraction; None when there is none to be read."""
    last_digit = max(text.rfind(digit) for digit in "0123456789")
    if last_digit < 0:
        return None
    start = max(0, last_digit - _WINDOW)
    last = None
    for match in _NUMBER.finditer(text[start : last_digit + _TAIL]):
        last = match
    if last is None or (start > 0 and last.start() == 0):
        return None
    number = _value(last)
    return None if number is None else (last.group(), number)


def _value(match: re.Match[str]) -> Fraction | None:
    """The number that a match of `_NUMBER` denotes, None when it is out of bounds."""
    if sum(character.isdigit() for character in match.group()) > _MAX_DIGITS:
        return None
    over = match["over"] or match["over1"] or match["over2"]
    if over is not None:
        under = match["under"] or match["under1"] or match["under2"]
        magnitude = _mixed(match["whole"] or match["mixed"], int(over), int(under))
    else:
        magnitude = _scaled(match)
    if magnitude is None:
        return None
    return -magnitude if match["sign"] in ("-", "−") else magnitude


def _mixed(whole: str | None, over: int, under: int) -> Fraction | None:
    """`whole over/under`; only a proper fraction makes a mixed number, otherwise the two stand apart."""
    if under == 0:
        return None
    fraction = Fraction(over, under)
    return fraction + int(whole) if whole is not None and fraction < 1 else fraction


def _scaled(match: re.Match[str]) -> Fraction | None:
    """A plain number with what may follow it: exponent, power of ten, power, divisor."""
    plain = re.sub(r"[^0-9.]", "", match["plain"])
    base = Fraction(plain)
    if match["divisor"] is not None:
        divisor = Fraction(match["divisor"])
        return base / divisor if divisor else None
    written = match["exponent"] or match["ten"] or match["power"]
    if written is None:
        return base
    exponent = int(written.replace("−", "-"))
    if abs(exponent) > _MAX_EXPONENT:
        return None
    if match["power"] is None:
        return base * Fraction(10) ** exponent
    return base**exponent if base or exponent >= 0 else None


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
