"""Numbers in a text, read into fractions. One of absurd size is not read: it costs no more than others."""

import re
from fractions import Fraction

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
