"""The reader of expressions: values of random trees, written in LaTeX and plainly, and what it refuses."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_rewards.mathematics.notation import clean
from roll_rewards.mathematics.syntax import Unreadable, names_in, read_expression
from roll_rewards.mathematics.value import Unbounded, Undefined, exact_value, value_at

Written = tuple[str, str, Fraction]
"""An expression in LaTeX, in plain notation, and its value."""


def joined(left: Written, right: Written, operator: str) -> Written:
    (one, plain, value), (other, plain_other, second) = left, right
    if operator == "+":
        return f"{one}+{other}", f"({plain} + {plain_other})", value + second
    if operator == "-":
        return rf"{one}-\left({other}\right)", f"({plain}-({plain_other}))", value - second
    if operator == "*":
        return rf"\left({one}\right)\cdot\left({other}\right)", f"({plain})*({plain_other})", value * second
    if second == 0:
        return one, plain, value
    return rf"\dfrac{{{one}}}{{{other}}}", f"(({plain})/({plain_other}))", value / second


numbers = st.integers(0, 99).map(lambda n: (str(n), str(n), Fraction(n)))
decimals = st.decimals(0, 9, places=2).map(lambda d: (str(d), str(d), Fraction(d)))
trees = st.recursive(
    numbers | decimals,
    lambda inner: (
        st.builds(joined, inner, inner, st.sampled_from("+-*/"))
        | st.builds(lambda w: (rf"-\left({w[0]}\right)", f"-({w[1]})", -w[2]), inner)
        | st.builds(
            lambda w, n: (rf"\left({w[0]}\right)^{{{n}}}", f"({w[1]})**{n}", w[2] ** n),
            inner,
            st.integers(0, 3),
        )
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_random_expressions_are_worth_what_they_say(tree: Written) -> None:
    latex, plain, value = tree
    for text in (latex, plain):
        found = exact_value(read_expression(clean(text)))
        assert found == value
    if value:
        assert math.isclose(float(value_at(read_expression(clean(latex)), {})), float(value), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2^2", -4),
        ("2^{-2}", Fraction(1, 4)),
        ("2^3^2", 512),
        ("6/2*3", 9),
        ("6/2(3)", 9),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"2\cdot\frac{1}{2}", 1),
        (r"\frac12", Fraction(1, 2)),
        (r"\frac1{23}", Fraction(1, 23)),
        (r"3!!", math.factorial(6)),
        (r"\binom{5}{2}", 10),
        (r"|-3|", 3),
        (r"\lfloor -2.5 \rfloor", -3),
        (r"\sqrt{16}", 4),
        (r"\max(2,3)", 3),
        (r"\gcd(12, 18)", 6),
        ("1--1", 2),
    ],
)
def test_notation_has_its_usual_meaning(text: str, value: object) -> None:
    assert exact_value(read_expression(clean(text))) == value


def test_names_are_variables_and_constants_are_not() -> None:
    assert names_in(read_expression(r"x_1 + \alpha e^{i\pi} y'")) == {"x_1", "alpha", "y'"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "2 3",
        "(1",
        "1)",
        "word",
        r"\int x",
        r"\frac{1}",
        "x^",
        "x_",
        "1" * 1500,
        "(" * 61 + "1" + ")" * 61,
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read_expression(text)


@pytest.mark.parametrize("text", ["9^{9^9}", "(10^9)!", r"\binom{10^{30}}{10^{29}}", "2^{10^7}"])
def test_values_beyond_all_bounds_are_not_computed(text: str) -> None:
    with pytest.raises(Unbounded):
        exact_value(read_expression(text))


def test_values_that_do_not_exist_are_undefined() -> None:
    with pytest.raises(Undefined):
        exact_value(read_expression(r"\frac{1}{1-1}"))
    with pytest.raises(Undefined):
        value_at(read_expression(r"\ln(x-x)"), {"x": Fraction(1)})
