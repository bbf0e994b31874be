"""How plain YAML text is read: by the type that the schema asks for.

YAML 1.1, which PyYAML follows, reads `off` as false, `1e-6` as text, `2026-11-30` as a date and `12:30` as
750. Here a plain scalar keeps its text until a field asks for a type: `read_bool`, `read_int`, `read_float`
and `read_str` answer for a field of that type, `read_any` for a value without a declared type (YAML 1.2
core rules). Used by `reading.py` and, to quote what needs quotes, by `dump.py`.
"""

import math
import re

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
YAML_1_1_BOOLEANS = frozenset({"yes", "no", "on", "off", "y", "n"})

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0o[0-7]+|0x[0-9a-fA-F]+)")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
SPELLED_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
LONGEST_NUMBER = 400
"""Characters; more is refused before Python's own limit on digits is met."""


class ScalarError(Exception):
    """Text that is not a value of the type asked for; `args[0]` says what to write instead, or is None."""


def read_any(text: str) -> object:
    """The value of plain text by YAML 1.2's core rules: null, bool, int, float or the text itself."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if len(text) > LONGEST_NUMBER:
        return text
    if INTEGER.fullmatch(text):
        return int(text, 0)
    if NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    if FLOAT.fullmatch(text) and not LEADING_ZERO.fullmatch(text):
        return float(text)
    return text


def read_str(text: str) -> str:
    """Plain text for a text field: as written, unless YAML 1.2 calls it a null, a boolean or a number."""
    value = read_any(text)
    if isinstance(value, str):
        return value
    raise ScalarError(None if value is None else f'for text write "{text}" in quotes')


def read_bool(text: str) -> bool:
    """Plain text for a boolean field: `true` or `false`."""
    if text in BOOLEANS:
        return BOOLEANS[text]
    raise ScalarError("write true or false")


def read_int(text: str) -> int:
    """Plain text for an integer field: Python's integer literals (`1_000`, `0x10`, `0o17`)."""
    bare = text.lstrip("+-").lower()
    if LEADING_ZERO.fullmatch(text):
        digits = bare.replace("_", "").lstrip("0") or "0"
        octal = f" or 0o{digits}" if set(digits) <= set("01234567") and digits != "0" else ""
        raise ScalarError(f"a leading zero can be read in two ways; write {digits}{octal}")
    if not bare.isascii() or len(text) - len(bare) > 1 or len(bare) > LONGEST_NUMBER:
        raise ScalarError(None)
    try:
        return int(text, 0)
    except ValueError:
        pass
    number = _finite_number(text)
    if number is not None and number.is_integer() and abs(number) < 2**53:
        raise ScalarError(f"for a whole number write {int(number)}")
    raise ScalarError(None)


def read_float(text: str) -> float:
    """Plain text for a float field: a finite number, also `1e-6`, `.5`, `1_000` and whole numbers."""
    if NOT_FINITE.fullmatch(text) or text.lstrip("+-").lower() in SPELLED_NOT_FINITE:
        raise ScalarError("write a finite number")
    if LEADING_ZERO.fullmatch(text) or INTEGER.fullmatch(text):
        whole = read_int(text)
        try:
            return float(whole)
        except OverflowError:
            raise ScalarError("write a finite number") from None
    number = _finite_number(text)
    if number is None:
        raise ScalarError(None)
    return number


def _finite_number(text: str) -> float | None:
    """The number of a decimal literal, underscores between digits allowed; None if it is none."""
    plain = re.sub(r"(?<=[0-9])_(?=[0-9])", "", text)
    if len(plain) > LONGEST_NUMBER or not FLOAT.fullmatch(plain):
        return None
    number = float(plain)
    return number if math.isfinite(number) else None
