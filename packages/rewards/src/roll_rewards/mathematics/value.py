"""What an expression is worth: exactly as a fraction, or to many digits at a point. Bounded everywhere.

Numbers that would not fit into memory (power towers, factorials of millions) raise `Unbounded` before
they are computed.
"""

import importlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

from roll_rewards.mathematics.syntax import Node

DIGITS = 100
"""Digits that `value_at` computes with; `comparison` trusts fewer of them."""

_MAX_BITS = 60_000
_MAX_FACTORIAL = 5_000
_MAX_LOG = 1e6


class Unbounded(Exception):
    """A value too large to compute; the argument says which."""


class Undefined(Exception):
    """No value at this point: a division by zero, a logarithm of zero, or a name without a value."""


def exact_value(node: Node) -> Fraction | None:
    """The value as a fraction, None when it is irrational, symbolic or needs a function.

    Raises:
        Unbounded: An integer of it would have more than 60,000 bits.
        Undefined: It divides by zero.
    """
    if node.op == "number":
        return node.value
    if node.op == "name":
        return None
    values = [exact_value(arg) for arg in node.args]
    if any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    return _exact(node.op, known)


def _exact(op: str, values: list[Fraction]) -> Fraction | None:
    first = values[0]
    if op == "neg":
        return -first
    if op == "+":
        return sum(values, Fraction(0))
    if op == "*":
        return first * values[1]
    if op == "/":
        if not values[1]:
            raise Undefined("a division by zero")
        return first / values[1]
    if op == "^":
        return _exact_power(first, values[1])
    if op == "!":
        if first.denominator != 1 or first < 0:
            return None
        if first > _MAX_FACTORIAL:
            raise Unbounded(f"the factorial of a number above {_MAX_FACTORIAL}")
        return Fraction(math.factorial(int(first)))
    if op == "binom":
        return _exact_binomial(first, values[1])
    if op in ("abs", "max", "min", "floor", "ceil"):
        chosen = {"abs": abs(first), "max": max(values), "min": min(values)}
        rounded = {"floor": Fraction(math.floor(first)), "ceil": Fraction(math.ceil(first))}
        return (chosen | rounded)[op]
    if op == "gcd" and all(value.denominator == 1 for value in values):
        return Fraction(math.gcd(*(int(value) for value in values)))
    if op in ("sqrt", "root"):
        return _exact_root(first, values[1] if op == "root" else Fraction(2))
    return None


def _exact_power(base: Fraction, power: Fraction) -> Fraction | None:
    if power.denominator != 1:
        return None
    if base in (0, 1, -1):
        if base == 0 and power < 0:
            raise Undefined("a division by zero")
        return Fraction(1) if power % 2 == 0 and base else (base if power else Fraction(1))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(power) * bits > _MAX_BITS:
        raise Unbounded(f"a power of about {float(min(abs(power) * bits, Fraction(10**300))):.3g} bits")
    return base ** int(power)


def _exact_binomial(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
        return None
    if min(k, n - k) * n.numerator.bit_length() > _MAX_BITS:
        raise Unbounded("a binomial coefficient of too many digits")
    return Fraction(math.comb(int(n), int(k)))


def _exact_root(radicand: Fraction, degree: Fraction) -> Fraction | None:
    """The square root of a square; other roots are left to `value_at`."""
    if degree != 2 or radicand < 0:
        return None
    over, under = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
    return (
        Fraction(over, under)
        if over * over == radicand.numerator and under**2 == radicand.denominator
        else None
    )


def value_at(node: Node, point: Mapping[str, Fraction]) -> Any:
    """The value to about 100 digits, with names standing for numbers.

    Args:
        node: The expression.
        point: A number for each of its variables.

    Returns:
        An `mpmath` real or complex number, principal branches throughout.

    Raises:
        Unbounded: A value on the way is beyond e**1,000,000, or a factorial beyond 5,000.
        Undefined: There is no value here.
    """
    mpmath = importlib.import_module("mpmath")
    with many_digits():
        try:
            value = _approximate(node, point, mpmath.mp)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
            raise Undefined(str(error)) from error
        if not mpmath.isfinite(value):
            raise Undefined("infinite or not a number")
        return value


def many_digits() -> AbstractContextManager[object]:
    """The context in which values of `value_at` are compared: elsewhere mpmath rounds them to 15 digits."""
    context: AbstractContextManager[object] = importlib.import_module("mpmath").workdps(DIGITS)
    return context


def as_fraction(value: Any) -> Fraction:
    """The real part of a value as a fraction of its first 60 digits."""
    mpmath = importlib.import_module("mpmath")
    return Fraction(mpmath.nstr(value.real, 60, strip_zeros=False))


def _approximate(node: Node, point: Mapping[str, Fraction], mp: Any) -> Any:
    if node.op == "number":
        return mp.mpf(node.value.numerator) / node.value.denominator
    if node.op == "name":
        return _named(node.name, point, mp)
    args = [_approximate(arg, point, mp) for arg in node.args]
    first = args[0]
    match node.op:
        case "neg":
            return -first
        case "+":
            return sum(args[1:], first)
        case "*":
            return first * args[1]
        case "/":
            return first / args[1]
        case "^":
            return _school_power(first, args[1], exact_value(node.args[1]), mp)
        case "sqrt":
            return mp.sqrt(first)
        case "root":
            return _root(first, args[1], mp)
        case "abs":
            return abs(first)
        case "log_base":
            return mp.log(first) / mp.log(args[1])
        case "exp":
            return _power(mp.e, first, mp)
        case "!" | "binom":
            if any(abs(arg) > _MAX_FACTORIAL for arg in args):
                raise Unbounded(f"a factorial of a number above {_MAX_FACTORIAL}")
            return mp.factorial(first) if node.op == "!" else mp.binomial(first, args[1])
        case _:
            return _function(node.op, args, mp)


def _named(name: str, point: Mapping[str, Fraction], mp: Any) -> Any:
    constants = {"pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}
    if name in constants:
        return +constants[name]
    if name not in point:
        raise Undefined(f"no value of {name}")
    return mp.mpf(point[name].numerator) / point[name].denominator


def _power(base: Any, power: Any, mp: Any) -> Any:
    if base == 0:
        return base**power
    if abs(power) * abs(mp.log(abs(base))) > _MAX_LOG:
        raise Unbounded("a power with a value beyond all bounds")
    return base**power


def _school_power(base: Any, power: Any, exact: Fraction | None, mp: Any) -> Any:
    """A power with an odd denominator in its exponent is real for negative bases, as a root is."""
    if (
        exact is not None
        and exact.denominator > 1
        and exact.denominator % 2
        and mp.im(base) == 0
        and base < 0
    ):
        size = _power(-base, power, mp)
        return -size if exact.numerator % 2 else size
    return _power(base, power, mp)


def _root(radicand: Any, degree: Any, mp: Any) -> Any:
    """The real root of a negative number where the degree is odd, as school mathematics has it."""
    if mp.im(radicand) == 0 and radicand < 0 and degree == int(degree) and int(degree) % 2:
        return -_power(-radicand, 1 / degree, mp)
    return _power(radicand, 1 / degree, mp)


def _function(op: str, args: list[Any], mp: Any) -> Any:
    if op in ("sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc") and abs(args[0]) > _MAX_LOG:
        raise Unbounded(f"{op} of a number beyond {_MAX_LOG:g}")
    if op in ("max", "min"):
        return (max if op == "max" else min)(args)
    if op == "gcd":
        raise Undefined("the greatest common divisor of numbers that are not whole")
    names = {"ln": "ln", "log": "log10", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
    return getattr(mp, names.get(op, op))(args[0])
