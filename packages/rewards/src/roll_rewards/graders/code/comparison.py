"""Whether a program's output or return value is the expected one. Called by the `code` grader."""

import math
from decimal import Decimal, InvalidOperation

_RELATIVE = 1e-9
_DEPTH = 200


def same_output(got: bytes, expected: str, *, tolerance: float | None = None) -> bool:
    """Whether printed text is as expected.

    Line ends (LF, CRLF), white space at the end of lines and empty lines at the end do not matter.

    Args:
        got: What the program printed; anything but UTF-8 is wrong.
        expected: What it should print.
        tolerance: Absolute and relative error allowed in numbers; None compares them as text.
    """
    try:
        mine, theirs = _lines(got.decode("utf-8")), _lines(expected)
    except UnicodeDecodeError:
        return False
    if mine == theirs:
        return True
    if tolerance is None or len(mine) != len(theirs):
        return False
    return all(
        len(left := a.split()) == len(right := b.split())
        and all(_same_word(x, y, tolerance) for x, y in zip(left, right, strict=True))
        for a, b in zip(mine, theirs, strict=True)
    )


def same_value(got: object, expected: object, *, tolerance: float = 0.0, depth: int = 0) -> bool:
    """Whether a returned value is as expected.

    Numbers are equal if their values are (1 and 1.0), floats up to a relative error of 1e-9; a bool is no
    number; a tuple is a list; a set equals only a set; where all keys expected are strings, as JSON
    has them, keys are compared as text.

    Args:
        got: Plain value that the program returned.
        expected: What it should return.
        tolerance: Absolute and relative error allowed in floats beyond that.
        depth: Used by the function itself.
    """
    if depth > _DEPTH:
        return False
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, int) and isinstance(expected, int):
        return got == expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return _same_number(got, expected, tolerance)
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            same_value(a, b, tolerance=tolerance, depth=depth + 1) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        if all(isinstance(key, str) for key in expected):
            got = {key if isinstance(key, str) else str(key): value for key, value in got.items()}
        return got.keys() == expected.keys() and all(
            same_value(got[key], expected[key], tolerance=tolerance, depth=depth + 1) for key in expected
        )
    return type(got) is type(expected) and got == expected


def _same_number(got: float, expected: float, tolerance: float) -> bool:
    try:
        a, b = float(got), float(expected)
    except OverflowError:
        return got == expected
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return math.isclose(a, b, rel_tol=max(_RELATIVE, tolerance), abs_tol=tolerance)


def _same_word(got: str, expected: str, tolerance: float) -> bool:
    if got == expected:
        return True
    try:
        a, b = Decimal(got), Decimal(expected)
        if not (a.is_finite() and b.is_finite()):
            return False
        return math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=tolerance)
    except (InvalidOperation, OverflowError):
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
