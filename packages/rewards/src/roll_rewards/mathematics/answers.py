"""The shape of an answer: one value, several, a tuple, set, interval, matrix, equation, or words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from roll_rewards.mathematics.notation import clean, plain_words, without_thousands
from roll_rewards.mathematics.syntax import Node, Unreadable, read_expression
from roll_rewards.mathematics.units import Unit, may_be_unit, read_unit

MAX_ITEMS = 200
NO_VALUES = frozenset(("nan", "none", "null"))
"""Words that a failed computation prints; they equal nothing, not even themselves."""

_MAX_DEPTH = 12
_RELATION = re.compile(r"\\(?:le|ge|ne|equiv|approx)(?![A-Za-z])|<=|>=|!=|[<>=]")
_OPERATORS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", r"\equiv": "=", r"\approx": "="}
_SEPARATOR = re.compile(r",|;|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:land|lor|vee|wedge)(?![A-Za-z])")
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(?P<name>[pbvBV]?(?:small)?matrix|array|cases|aligned|align\*?)\}(?:\s*\{[lcr|\s]*\})?(?P<body>.*)"
    r"\\end\s*\{(?P=name)\}$",
    re.DOTALL,
)
_CURRENCY = re.compile(r"^(-?)\s*(?:US)?([$€£¥])\s*(?=[\d.\\(])")
_PERCENT = re.compile(r"\s*(?:%|per\s?cent(?:age points?)?)$", re.IGNORECASE)
_DEGREE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*([CF]?)$")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?")
_EXPONENT = re.compile(r"([-+]?(?:\d{1,40}(?:\.\d{1,40})?|\.\d{1,40}))[eE]([-+]?\d{1,3})")
_UNIT = re.compile(r"(?:[\d)}!]|\\pi|\.)(\s*)(?=([A-Za-z$€£¥][A-Za-z$€£¥ ./^{}\d\-]*)$)")

Kind = Literal["value", "list", "pair", "set", "matrix", "union", "relation", "ratio"]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to read a value.

    Example: `Form(read_expression("12"), unit=(("cm", 2),))`.

    Attributes:
        node: The expression.
        unit: What stands behind it; None without one.
        percent: Whether a percent sign follows.
    """

    node: Node
    unit: Unit | None = None
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its parts.

    Example: `Answer("pair", "[0,1)", items=(zero, one), ends="[)")`.

    Attributes:
        kind: Its shape.
        text: The cleaned text that it was read from.
        items: Members, components, rows, parts of a union, or sides of a relation.
        forms: Readings of a `value`; none when it is words, or mathematics that was not understood.
        ends: Brackets of a `pair`, or the operators of a `relation`, space between them.
    """

    kind: Kind
    text: str
    items: "tuple[Answer, ...]" = ()
    forms: tuple[Form, ...] = ()
    ends: str = ""


def readings(text: str) -> tuple[Answer, ...]:
    """The ways to read an answer: `1,000` is a number, or a list of two.

    Args:
        text: The answer as extracted; `\\boxed` and surrounding sentences are gone.
    """
    cleaned = clean(text)
    forms = dict.fromkeys((without_thousands(cleaned), cleaned))
    return tuple(_answer(form, 0) for form in forms)


def leaves(answer: Answer) -> Iterator[Answer]:
    """Every value inside an answer."""
    if answer.kind == "value":
        yield answer
    for item in answer.items:
        yield from leaves(item)


def _answer(text: str, depth: int) -> Answer:
    text = _bare(text)
    if depth > _MAX_DEPTH:
        return Answer("value", text)
    readers = (_from_environment, _from_pieces, _from_signs, _from_relation, _from_brackets, _from_ratio)
    for reader in readers:
        found = reader(text, depth + 1)
        if found is not None:
            return found
    return Answer("value", text, forms=_forms(text))


def _bare(text: str) -> str:
    """Without closing punctuation and without braces around all of it."""
    text = re.sub(r"(?:\s*[.;,:!]|\s*\\\\)+$", "", text) if not re.search(r"\d\s*!$", text) else text
    text = text.strip()
    while text.startswith("{") and text.endswith("}") and _partner(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _from_environment(text: str, depth: int) -> Answer | None:
    match = _ENVIRONMENT.match(text)
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\|\\cr", match["body"]) if row.strip() and row.strip() != r"\hline"]
    if "matrix" in match["name"] or match["name"] == "array":
        cells = tuple(
            Answer("list", row, tuple(_answer(cell, depth) for cell in row.split("&"))) for row in rows
        )
        return Answer(
            "matrix", text, cells[:MAX_ITEMS], ends="|" if match["name"].startswith(("v", "V")) else ""
        )
    return Answer("list", text, tuple(_answer(row.replace("&", " "), depth) for row in rows[:MAX_ITEMS]))


def _from_pieces(text: str, depth: int) -> Answer | None:
    """Parts of a union, or several answers with commas or words between them."""
    parts = _split(text, re.compile(r"\\cup(?![A-Za-z])|(?<=[)\]])\s*U\s*(?=[(\[])"))
    if len(parts) > 1:
        return Answer("union", text, tuple(_answer(part, depth) for part in parts))
    french = re.fullmatch(r"([\[\]])([^\[\]]+[,;][^\[\]]+)([\[\]])", text)
    if french is not None and (french[1], french[3]) != ("[", "]"):
        ends = ("(" if french[1] == "]" else "[") + (")" if french[3] == "[" else "]")
        return _pair(text, french[2], ends, depth)
    parts = [part for part in _split(text, _SEPARATOR) if part.strip()]
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    items = [_answer(part, depth) for part in parts]
    if all(map(_is_bound, items)) and re.search(r"\bor\b|\\lor|\\vee", text):
        return Answer("union", text, tuple(items))
    first, others = items[0], items[1:]
    if first.kind == "relation" and first.ends == "=" and all(item.kind != "relation" for item in others):
        # `k = 4, 5, 6` names the list, not its first member.
        items[0] = first.items[1]
    flat = [part for item in items for part in (item.items if item.kind == "list" else (item,))]
    return Answer("list", text, tuple(flat[:MAX_ITEMS]))


def _is_bound(item: Answer) -> bool:
    return item.kind == "relation" and set(item.ends.split()) <= {r"\le", r"\ge", "<", ">"}


def _from_signs(text: str, depth: int) -> Answer | None:
    """`a \\pm b` is two answers."""
    if not re.search(r"\\pm(?![A-Za-z])", text):
        return None
    upper = re.sub(r"\\pm(?![A-Za-z])", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
    lower = re.sub(r"\\pm(?![A-Za-z])", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
    return Answer("list", text, (_answer(upper, depth), _answer(lower, depth)))


def _from_relation(text: str, depth: int) -> Answer | None:
    member = re.fullmatch(r"[A-Za-z](?:_\w)?\s*\\in(?![A-Za-z])(.+)", text)
    if member is not None:
        return _answer(member[1], depth)
    sides, operators = _split(text, _RELATION), [found[0] for found in _matches(text, _RELATION)]
    if len(sides) < 2 or len(sides) > 5 or not all(side.strip() for side in sides):
        return None
    names = " ".join(_OPERATORS.get(operator, operator) for operator in operators)
    return Answer("relation", text, tuple(_answer(side, depth) for side in sides), ends=names)


def _from_brackets(text: str, depth: int) -> Answer | None:
    angled = re.fullmatch(r"\\langle(?![A-Za-z])(.+)\\rangle|<(.+)>", text)
    if angled is not None:
        return _pair(text, angled[1] or angled[2], "()", depth)
    if text in (r"\emptyset", r"\{ \}", r"\{\}"):
        return Answer("set", text)
    if re.fullmatch(r"\\mathbb\s*\{?\s*R\s*\}?|all real numbers|all reals", text):
        return _pair(text, r"-\infty, \infty", "()", depth)
    if text.startswith("\\{") and text.endswith("\\}") and _partner(text, 1) == len(text) - 1:
        inside = text[2:-2]
        builder = re.fullmatch(r"\s*[A-Za-z]\s*(?:\\mid|\\colon|[|:])(.+)", inside)
        if builder is not None:
            return _answer(builder[1], depth)
        parts = [part for part in _split(inside, re.compile("[,;]")) if part.strip()]
        return Answer("set", text, tuple(_answer(part, depth) for part in parts[:MAX_ITEMS]))
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _partner(text, 0) == len(text) - 1:
        return _pair(text, text[1:-1], text[0] + text[-1], depth)
    return None


def _pair(text: str, inside: str, ends: str, depth: int) -> Answer | None:
    parts = _split(inside, re.compile("[,;]"))
    if len(parts) < 2 or len(parts) > MAX_ITEMS:
        return None
    items = tuple(_answer(part, depth) for part in parts)
    if ends == "[]" and all(item.kind == "pair" and item.ends == "[]" for item in items):
        return Answer("matrix", text, tuple(replace(item, kind="list") for item in items))
    return Answer("pair", text, items, ends=ends)


def _from_ratio(text: str, depth: int) -> Answer | None:
    parts = _split(text, re.compile(r":|\\colon(?![A-Za-z])"))
    if len(parts) < 2 or len(parts) > 8 or not all(part.strip() for part in parts):
        return None
    items = tuple(_answer(part, depth) for part in parts)
    return Answer("ratio", text, items) if all(item.forms for item in items) else None


def _forms(text: str) -> tuple[Form, ...]:
    """Every way to read one value."""
    if plain_words(text) in NO_VALUES:
        return ()
    currency = _CURRENCY.match(text)
    if currency is not None:
        amount = _node(currency[1] + text[currency.end() :])
        return () if amount is None else (Form(amount, unit=read_unit(currency[2])),)
    if _TRIGONOMETRY.search(text):
        text = _ANGLE.sub(r"(\1\\pi/180)", text)
    percent, degree = _PERCENT.search(text), _DEGREE.search(text)
    if percent is not None:
        node = _node(text[: percent.start()])
        return () if node is None else (Form(node, percent=True),)
    if degree is not None:
        node = _node(text[: degree.start()])
        return () if node is None else (Form(node, unit=((f"deg{degree[1].lower()}", 1),)),)
    forms, node = [], _node(text)
    if node is not None:
        forms.append(Form(node))
    scientific = _EXPONENT.fullmatch(text)
    if scientific is not None:
        forms.append(Form(Node("number", value=Fraction(scientific[1]) * Fraction(10) ** int(scientific[2]))))
    for found in _UNIT.finditer(text):
        number = _node(text[: found.start(1)].rstrip("."))
        if number is not None and may_be_unit(found[2], after_space=bool(found[1])):
            forms.append(Form(number, unit=read_unit(found[2])))
            break
    return tuple(forms)


def _node(text: str) -> Node | None:
    try:
        return read_expression(text)
    except Unreadable:
        return None


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The pieces between separators that stand outside all brackets."""
    pieces, start = [], 0
    for found in _matches(text, separator):
        pieces.append(text[start : found.start()])
        start = found.end()
    return [*pieces, text[start:]]


def _matches(text: str, separator: re.Pattern[str]) -> list[re.Match[str]]:
    depth, found, position = 0, [], 0
    starts = {match.start(): match for match in separator.finditer(text)}
    while position < len(text):
        match = starts.get(position)
        if match is not None and depth == 0:
            found.append(match)
            position = max(match.end(), position + 1)
            continue
        depth += _step(text, position)
        position += 2 if text[position] == "\\" and text[position + 1 : position + 2] in "{}" else 1
    return found


def _step(text: str, position: int) -> int:
    """How the depth of brackets changes at a position; a bracket of either kind closes any other."""
    if text.startswith((r"\begin", r"\langle", r"\lfloor", r"\lceil"), position):
        return 1
    if text.startswith((r"\end", r"\rangle", r"\rfloor", r"\rceil"), position):
        return -1
    character = text[position + 1 : position + 2] if text[position] == "\\" else text[position]
    return (character in tuple("([{")) - (character in tuple(")]}"))


def _partner(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; -1 when it does not."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position
    return -1
