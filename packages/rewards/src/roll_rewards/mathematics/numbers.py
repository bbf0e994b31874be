"""Whether two expressions are worth the same: exactly where they are rational, at many points elsewhere.

An identity in variables is tested at fixed points of both signs, to 100 digits: two different analytic
expressions do not agree at eight of them. That is faster than simplifying, and always ends.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from roll_rewards.mathematics.conventions import Conventions
from roll_rewards.mathematics.syntax import Node, names_in
from roll_rewards.mathematics.value import (
    Unbounded,
    Undefined,
    as_fraction,
    exact_value,
    many_digits,
    value_at,
)

_POINTS = 8
_ENOUGH = 3
_TRUSTED_DIGITS = 45
_MAX_NAMES = 12
_WHOLE_NAMES = frozenset("nmkj")
# Bases of the points: quotients without a pattern, so that no identity holds there by chance.
_SEEDS = tuple(Fraction(a, b) for a, b in ((1367, 997), (-811, 613), (2221, 983), (-353, 1009), (467, 1327)))


def same_value(found: Node, wanted: Node, conventions: Conventions, *, scale: Fraction = Fraction(1)) -> bool:
    """Whether `found` times `scale` equals `wanted`.

    Values that cannot be computed (too large, undefined everywhere) are equal only when written alike.
    """
    if scale == 1 and found == wanted:
        return True
    try:
        exact, target = exact_value(found), exact_value(wanted)
        if exact is not None and target is not None:
            return _close(exact * scale, target, found, wanted, conventions, scale)
        names = names_in(found) | names_in(wanted)
        if len(names) > _MAX_NAMES:
            return False
        with many_digits():
            if not names:
                return _same_constant(found, wanted, conventions, scale)
            return _same_function(found, wanted, sorted(names), scale)
    except (Unbounded, Undefined, RecursionError):
        return False


def proportional(left: Node, right: Node) -> bool:
    """Whether one expression is a constant, other than 0, times the other: `3x-6=0` is `x=2`."""
    names = sorted(names_in(left) | names_in(right))
    if names_in(left) != names_in(right) or not 0 < len(names) <= _MAX_NAMES:
        return False
    quotients = []
    with many_digits():
        for point in itertools.islice(_points(names), 2 * _POINTS):
            try:
                over, under = value_at(left, point), value_at(right, point)
            except (Unbounded, Undefined, RecursionError):
                continue
            if over == 0 or under == 0:
                if over != under:
                    return False
                continue
            quotients.append(over / under)
        return len(quotients) >= _ENOUGH and all(_agree(quotient, quotients[0]) for quotient in quotients)


def is_unreduced(node: Node) -> bool:
    """Whether a fraction of two whole numbers could be reduced: `2/4`, `6/3`."""
    while node.op == "neg":
        node = node.args[0]
    if node.op != "/" or any(arg.op != "number" or arg.value.denominator != 1 for arg in node.args):
        return False
    over, under = (int(arg.value) for arg in node.args)
    return math.gcd(over, under) != 1 or under == 1


def is_literal(node: Node) -> bool:
    """Whether it is a number as one writes it: `-3`, `2.5`, `3/4`, `2\\frac{1}{2}`, `1.5 * 10^3`."""
    if node.op == "neg":
        return is_literal(node.args[0])
    if node.op in ("/", "+"):
        # The only sum that reads as one number is a mixed one.
        whole = all(arg.op == "number" and arg.value.denominator == 1 for arg in node.args)
        mixed = node.op == "+" and [arg.op for arg in node.args] == ["number", "/"]
        return (node.op == "/" and whole) or (mixed and 0 < (exact_value(node.args[1]) or 0) < 1)
    if node.op == "*" and node.args[1].op == "^":
        return node.args[0].op == "number" and node.args[1].args[0].value == 10
    return node.op == "number"


def _same_constant(found: Node, wanted: Node, conventions: Conventions, scale: Fraction) -> bool:
    value, target = value_at(found, {}), value_at(wanted, {})
    scaled = value * scale.numerator / scale.denominator
    if _agree(scaled, target):
        return True
    if not (conventions.rel_tolerance or conventions.rounding == "rounded"):
        return False
    if getattr(scaled, "imag", 0) != 0 or getattr(target, "imag", 0) != 0:
        return bool(abs(scaled - target) <= conventions.rel_tolerance * abs(target))
    return _close(as_fraction(scaled), as_fraction(target), found, wanted, conventions, scale)


def _same_function(found: Node, wanted: Node, names: list[str], scale: Fraction) -> bool:
    if _agree_at(itertools.islice(_points(names), _POINTS), found, wanted, scale):
        return True
    # Names that stand for whole numbers: cos(n pi) is (-1)^n.
    return set(names) <= _WHOLE_NAMES and _agree_at(_whole_points(names), found, wanted, scale)


def _agree_at(points: Iterable[dict[str, Fraction]], found: Node, wanted: Node, scale: Fraction) -> bool:
    agreeing = 0
    for point in points:
        try:
            value, target = value_at(found, point), value_at(wanted, point)
        except Undefined:
            continue
        if not _agree(value * scale.numerator / scale.denominator, target):
            return False
        agreeing += 1
    return agreeing >= _ENOUGH


def _whole_points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    for number in range(1, 1 + _POINTS):
        yield {name: Fraction(number + 3 * place) for place, name in enumerate(names)}


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    for number in itertools.count():
        yield {
            name: _SEEDS[(number + 2 * place) % len(_SEEDS)] * (1 + Fraction(number, 7)) + Fraction(place, 3)
            for place, name in enumerate(names)
        }


def _agree(value: Any, target: Any) -> bool:
    """Equal to the digits that are trusted; beside an exact zero, a rest of cancelled digits is zero."""
    size = max(abs(value), abs(target))
    distance = abs(value - target)
    if value == 0 or target == 0:
        return bool(distance == 0 or size * 10**70 < 1)
    return bool(distance * 10**_TRUSTED_DIGITS <= size)


def _close(
    value: Fraction, target: Fraction, found: Node, wanted: Node, conventions: Conventions, scale: Fraction
) -> bool:
    if value == target:
        return True
    if conventions.rel_tolerance and abs(value - target) <= Fraction(str(conventions.rel_tolerance)) * abs(
        target
    ):
        return True
    if conventions.rounding == "exact":
        return False
    for node, factor, digits in ((wanted, Fraction(1), 2), (found, scale, 3)):
        decimals = _decimals(node, digits)
        if decimals is not None and abs(value - target) <= Fraction(1, 2 * 10**decimals) * abs(factor):
            return True
    return False


def _decimals(node: Node, digits: int) -> int | None:
    """Digits behind the point of a decimal with at least so many significant digits."""
    while node.op == "neg":
        node = node.args[0]
    if node.op != "number" or not node.decimals:
        return None
    significant = len(str(abs(int(node.value * 10**node.decimals))))
    return node.decimals if significant >= digits else None
