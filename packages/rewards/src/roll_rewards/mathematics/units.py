"""Units of measure behind a number: which they are, and whether two of them agree."""

import re
from fractions import Fraction

_SIZES: dict[str, dict[str, str]] = {
    "length": {
        "nm": "1/1000000000", "um": "1/1000000", "mm": "1/1000", "cm": "1/100", "dm": "1/10", "m": "1",
        "km": "1000", "in": "0.0254", "ft": "0.3048", "yd": "0.9144", "mi": "1609.344",
    },
    "mass": {"mg": "1/1000000", "g": "1/1000", "kg": "1", "t": "1000", "lb": "0.45359237",
    "oz": "0.028349523125"},
    "time": {"ms": "1/1000", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
    "long time": {"month": "1", "year": "12", "decade": "120"},
    "volume": {"ml": "1/1000", "cl": "1/100", "l": "1"},
    "angle": {"deg": "1"},
    "radian": {"rad": "1"},
    "money": {"$": "1", "cent": "1/100"},
    "euro": {"€": "1"}, "pound": {"£": "1"}, "yen": {"¥": "1"},
    "temperature": {"degc": "1"}, "fahrenheit": {"degf": "1"}, "kelvin": {"k": "1"},
    "energy": {"j": "1", "kj": "1000"}, "power": {"w": "1", "kw": "1000"}, "force": {"n": "1"},
    "frequency": {"hz": "1"}, "voltage": {"v": "1"}, "current": {"a": "1"}, "speed": {"mph": "1"},
    "unit": {"unit": "1"},
}  # fmt: skip
_DIMENSIONS = {
    unit: (dimension, Fraction(size)) for dimension, units in _SIZES.items() for unit, size in units.items()
}
_SYNONYMS = {
    "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m",
    "metre": "m",
    "kilometer": "km", "kilometre": "km", "inch": "in", "inches": "in", "foot": "ft", "feet": "ft",
    "yard": "yd",
    "mile": "mi", "milligram": "mg", "gram": "g", "kilogram": "kg", "kgs": "kg", "ton": "t", "tonne": "t",
    "pound": "lb", "lbs": "lb", "ounce": "oz", "millisecond": "ms", "second": "s", "sec": "s",
    "minute": "min",
    "hour": "h", "hr": "h", "hrs": "h", "mins": "min", "secs": "s", "milliliter": "ml", "millilitre": "ml",
    "liter": "l", "litre": "l", "degree": "deg", "°": "deg", "radian": "rad", "dollar": "$", "usd": "$",
    "euro": "€", "yen": "¥", "°c": "degc", "°f": "degf", "celsius": "degc", "fahrenheit": "degf",
    "joule": "j",
    "watt": "w", "newton": "n", "hertz": "hz", "volt": "v", "ampere": "a", "kelvin": "k", "yr": "year",
}  # fmt: skip
_LONE_LETTERS = frozenset("mgshlJWVAKNt")
_WORD = re.compile(r"[A-Za-z$€£¥°]+")
_NO_UNITS = frozenset(
    ("not", "no", "or", "is", "maybe", "perhaps", "wrong", "incorrect", "false", "if", "but")
)
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}

Unit = tuple[tuple[str, int], ...]
"""Factors of a unit with their powers, sorted: `(("h", -1), ("km", 1))` is km/h."""


def read_unit(text: str) -> Unit | None:
    """The unit that a text is, None when it has no word.

    Example: `square cm`, `cm^2` and `centimeters^{2}` are all `(("cm", 2),)`.
    """
    factors: dict[str, int] = {}
    sign, pending, last = 1, 1, ""
    for token in re.findall(r"[A-Za-z$€£¥°]+|\^\s*\{?\s*-?\d+\s*\}?|/", text):
        word = token.casefold()
        if token == "/" or word == "per":
            sign = -1
        elif token.startswith("^"):
            if last:
                power = int(re.sub(r"[^-\d]", "", token))
                factors[last] += sign * (power - 1)
        elif word in ("squared", "cubed") and last:
            factors[last] += sign * (_POWER_WORDS[word] - 1)
        elif word in _POWER_WORDS:
            pending = _POWER_WORDS[word]
        elif word not in ("of", "the", "a", "an"):
            last = _canonical(word)
            factors[last] = factors.get(last, 0) + sign * pending
            pending = 1
    return tuple(sorted(factors.items())) or None


def is_measure(unit: Unit) -> bool:
    """Whether every factor is a known unit of measure, rather than a word such as `apples`."""
    return all(name in _DIMENSIONS for name, _ in unit)


def may_be_unit(text: str, *, after_space: bool) -> bool:
    """Whether a text behind a number reads as its unit, rather than as variables.

    Args:
        text: What follows the number.
        after_space: Whether a space stands between the two.
    """
    words = _WORD.findall(text)
    if not words or len(words) > 6 or re.search(r"\d", re.sub(r"\^\s*\{?\s*-?\d\s*\}?", "", text)):
        return False
    if not _NO_UNITS.isdisjoint(word.casefold() for word in words):
        return False
    unit = read_unit(text)
    if unit is not None and is_measure(unit):
        return all(len(word) > 1 or not word.isalpha() or word in _LONE_LETTERS for word in words)
    return after_space and any(len(word) > 3 for word in words)


def conversion(unit: Unit, other: Unit) -> Fraction | None:
    """What a value in `unit` is multiplied with to be one in `other`; None when they measure other things."""
    if unit == other:
        return Fraction(1)
    if not (is_measure(unit) and is_measure(other)):
        return Fraction(1) if {name for name, _ in unit} & {name for name, _ in other} else None
    sizes, dimensions = [], []
    for factors in (unit, other):
        size, powers = Fraction(1), dict[str, int]()
        for name, power in factors:
            dimension, factor = _DIMENSIONS[name]
            size *= factor**power
            powers[dimension] = powers.get(dimension, 0) + power
        sizes.append(size)
        dimensions.append({dimension: power for dimension, power in powers.items() if power})
    return sizes[0] / sizes[1] if dimensions[0] == dimensions[1] else None


def _canonical(word: str) -> str:
    for form in (word, word.removesuffix("s"), word.removesuffix("es")):
        if form in _DIMENSIONS:
            return form
        if form in _SYNONYMS:
            return _SYNONYMS[form]
    return word.removesuffix("s") if len(word) > 3 else word
