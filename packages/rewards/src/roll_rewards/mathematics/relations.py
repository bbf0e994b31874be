"""Equations and inequalities as what they say about a name: the value it has, or the intervals it lies in."""

import re

from roll_rewards.mathematics.answers import Answer, Form
from roll_rewards.mathematics.conventions import Conventions
from roll_rewards.mathematics.numbers import same_value
from roll_rewards.mathematics.syntax import Node, names_in

_INFINITY = Node("name", name="infty")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{-1\})?(?:\s*\([^()]*\))?|.*[A-Za-z]{3,}.*")
_DERIVATIVE = re.compile(r"\\[dt]?frac\s*\{\s*d\s*\w*\s*\}\s*\{\s*d\s*\w\s*\}(?:\s*\w)?|d\w/d\w")


def without_name(relation: Answer, conventions: Conventions) -> Answer | None:
    """The right side of `x = 5`, `f(x) = ...`, `\\text{area} = 12`; None for others.

    A chain of equal numbers (`2 + 3 = 5`) is its last number, when it is true.
    """
    if set(relation.ends.split()) != {"="}:
        return None
    sides = list(relation.items)
    if _is_name(sides[0]):
        sides = sides[1:]
    elif _is_name(sides[-1]) and len(sides) == 2:
        return sides[0]
    last = sides[-1]
    for side in sides[:-1]:
        if not (
            side.forms and last.forms and same_value(side.forms[0].node, last.forms[0].node, conventions)
        ):
            return None
    return last


def as_intervals(answer: Answer) -> Answer | None:
    """An inequality in one name as an interval, a union of inequalities as one of intervals; None for others.

    Intervals themselves are returned as they are.
    """
    if answer.kind == "pair":
        return answer
    if answer.kind == "union":
        parts = [as_intervals(item) for item in answer.items]
        known = tuple(part for part in parts if part is not None)
        return Answer("union", answer.text, known) if len(known) == len(parts) else None
    if answer.kind != "relation":
        return None
    operators = answer.ends.split()
    if not set(operators) <= set(_FLIPPED):
        return None
    if len(operators) == 1:
        return _half_line(answer, operators[0])
    return _between(answer, operators) if len(operators) == 2 else None


def _half_line(answer: Answer, operator: str) -> Answer | None:
    left, right = answer.items
    if _is_name(right) and not _is_name(left):
        left, right, operator = right, left, _FLIPPED[operator]
    if not _is_name(left) or not _is_number(right):
        return None
    low = Answer("value", r"-\infty", forms=(Form(Node("neg", (_INFINITY,))),))
    high = Answer("value", r"\infty", forms=(Form(_INFINITY),))
    if operator in ("<", r"\le"):
        return Answer("pair", answer.text, (low, right), ends="(" + (")" if operator == "<" else "]"))
    return Answer("pair", answer.text, (right, high), ends=("(" if operator == ">" else "[") + ")")


def _between(answer: Answer, operators: list[str]) -> Answer | None:
    low, middle, high = answer.items
    if operators[0] in (">", r"\ge"):
        low, high, operators = high, low, [_FLIPPED[operators[1]], _FLIPPED[operators[0]]]
    if not (_is_name(middle) and _is_number(low) and _is_number(high)) or not set(operators) <= {"<", r"\le"}:
        return None
    ends = ("(" if operators[0] == "<" else "[") + (")" if operators[1] == "<" else "]")
    return Answer("pair", answer.text, (low, high), ends=ends)


def _is_name(side: Answer) -> bool:
    if side.kind != "value":
        return False
    if _DERIVATIVE.fullmatch(side.text):
        return True
    lone = any(form.node.op == "name" and names_in(form.node) for form in side.forms)
    return lone or (
        _NAME.fullmatch(side.text) is not None and not re.search(r"\d\s*[-+*/^]|\\frac|\\sqrt", side.text)
    )


def _is_number(side: Answer) -> bool:
    return any(not names_in(form.node) for form in side.forms)
