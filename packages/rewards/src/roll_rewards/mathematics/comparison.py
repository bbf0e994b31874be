"""Whether an answer is the reference. Runs in a worker process, where slow code can be stopped.

`judge` is what the math grader calls there; it takes and returns plain values.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from roll_rewards.mathematics.answers import NO_VALUES, Answer, Form, leaves, readings
from roll_rewards.mathematics.conventions import Conventions
from roll_rewards.mathematics.notation import plain_words
from roll_rewards.mathematics.numbers import is_literal, is_unreduced, proportional, same_value
from roll_rewards.mathematics.relations import as_intervals, without_name
from roll_rewards.mathematics.syntax import Node, names_in
from roll_rewards.mathematics.units import conversion

Verdict = Literal["equal", "different", "no reference"]
MAX_ANSWER_CHARS = 5_000

_CHOICE = re.compile(r"^\W*(?:option|choice|answer)?\s*\(?([A-Ja-j])(?:\)|\.|:|\s*$)", re.IGNORECASE)
_LONE_CHOICE = re.compile(r"(?<![A-Za-z\\])\(?([A-J])\)?(?![A-Za-z])")
_WORDS = re.compile(r"(?=.*[A-Za-z]{2})[A-Za-z][A-Za-z .'-]*")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def judge(answer: str, reference: str, conventions: Mapping[str, Any]) -> Verdict:
    """Whether two answers are the same.

    Args:
        answer: As extracted from a response.
        reference: As the data set has it; `\\boxed`, `$` and the like are taken off.
        conventions: Fields of `Conventions`.
    """
    chosen = Conventions(**conventions)
    wanted_forms = readings(reference)
    if not any(form.text for form in wanted_forms):
        return "no reference"
    if len(answer) > MAX_ANSWER_CHARS or not answer.strip():
        return "different"
    found_forms = readings(answer)
    for found in found_forms:
        if any(_same(found, wanted, chosen) for wanted in wanted_forms):
            return "equal"
    letter = _choice_letter(answer, reference)
    if letter is not None:
        return "equal" if letter else "different"
    if _is_foreign(found_forms[-1]) or _is_foreign(wanted_forms[-1]):
        from roll_rewards.mathematics.math_verify import verified

        return "equal" if verified(answer, reference) else "different"
    return "different"


def _same(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    if "relation" in (found.kind, wanted.kind):
        return _same_relation(found, wanted, conventions)
    if found.kind == wanted.kind == "value":
        return _same_leaf(found, wanted, conventions)
    kinds = {found.kind, wanted.kind}
    if kinds <= {"list", "set"}:
        ordered = conventions.order == "same" and kinds == {"list"}
        return _same_items(found.items, wanted.items, conventions, ordered=ordered)
    if kinds == {"union"}:
        return _same_items(found.items, wanted.items, conventions, ordered=False)
    if kinds == {"pair"}:
        return found.ends == wanted.ends and _same_items(found.items, wanted.items, conventions, ordered=True)
    if kinds in ({"list", "pair"}, {"matrix", "pair"}, {"matrix", "list"}):
        return _same_vector(found, wanted, conventions)
    if kinds == {"matrix"}:
        return found.ends == wanted.ends and _same_rows(found.items, wanted.items, conventions)
    if "ratio" in kinds:
        return _same_ratio(found, wanted, conventions)
    if kinds == {"set", "value"} or kinds == {"list", "value"}:
        many, one = (found, wanted) if found.items else (wanted, found)
        return len(many.items) == 1 and _same(many.items[0], one, conventions)
    return False


def _same_items(
    found: Sequence[Answer], wanted: Sequence[Answer], conventions: Conventions, *, ordered: bool
) -> bool:
    if ordered:
        return len(found) == len(wanted) and all(
            _same(one, other, conventions) for one, other in zip(found, wanted, strict=True)
        )
    left, used = list(wanted), list[Answer]()
    for item in found:
        match = next((other for other in left if _same(item, other, conventions)), None)
        if match is not None:
            left.remove(match)
            used.append(match)
        elif not any(_same(item, other, conventions) for other in used):
            return False
    # What is left must be said already: a set may name a member twice.
    return all(any(_same(item, other, conventions) for other in used) for item in left)


def _same_rows(found: Sequence[Answer], wanted: Sequence[Answer], conventions: Conventions) -> bool:
    return len(found) == len(wanted) and all(
        _same_items(row.items, other.items, conventions, ordered=True)
        for row, other in zip(found, wanted, strict=True)
    )


def _same_vector(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    """A tuple against a list, a row or a column: the same components in the same order."""
    components = []
    for answer in (found, wanted):
        if answer.kind == "pair" and answer.ends != "()" and "matrix" not in (found.kind, wanted.kind):
            return False
        if answer.kind != "matrix":
            components.append(answer.items)
        elif len(answer.items) == 1:
            components.append(answer.items[0].items)
        elif all(len(row.items) == 1 for row in answer.items):
            components.append(tuple(row.items[0] for row in answer.items))
        else:
            return False
    return _same_items(components[0], components[1], conventions, ordered=True)


def _same_ratio(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    one, other = _ratio_nodes(found), _ratio_nodes(wanted)
    if one is None or other is None or len(one) != len(other):
        return False
    if conventions.unreduced == "reject" and found.kind == wanted.kind:
        return all(same_value(a, b, conventions) for a, b in zip(one, other, strict=True))
    return all(
        same_value(Node("*", (a, other[0])), Node("*", (b, one[0])), conventions)
        for a, b in zip(one[1:], other[1:], strict=True)
    )


def _ratio_nodes(answer: Answer) -> list[Node] | None:
    """The parts of a ratio, or of a quotient that stands for one."""
    if answer.kind == "ratio":
        return [item.forms[0].node for item in answer.items]
    if answer.kind == "value" and answer.forms:
        node = answer.forms[0].node
        return list(node.args) if node.op == "/" else [node, Node("number", value=Fraction(1))]
    return None


def _same_relation(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    spans = as_intervals(found), as_intervals(wanted)
    if spans[0] is not None and spans[1] is not None:
        return _same(spans[0], spans[1], conventions)
    if found.kind == wanted.kind:
        if found.ends == wanted.ends and _same_items(found.items, wanted.items, conventions, ordered=True):
            return True
        return _same_equation(found, wanted, conventions) or _same_named(found, wanted, conventions)
    for one, other in ((found, wanted), (wanted, found)):
        if one.kind == "relation":
            rest = without_name(one, conventions)
            return rest is not None and (
                _same(rest, other, conventions) if one is found else _same(other, rest, conventions)
            )
    return False


def _same_equation(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    """Two equations of the same curve, up to a factor; a solution `x = 2` must be solved in both."""
    if not found.ends == wanted.ends == "=":
        return False
    if _is_solution(wanted, conventions) and not _is_solution(found, conventions):
        return False
    differences = []
    for answer in (found, wanted):
        left, right = answer.items
        if not (left.forms and right.forms):
            return False
        differences.append(Node("+", (left.forms[0].node, Node("neg", (right.forms[0].node,)))))
    return proportional(differences[0], differences[1])


def _is_solution(answer: Answer, conventions: Conventions) -> bool:
    rest = without_name(answer, conventions)
    return rest is not None and any(not names_in(form.node) for form in rest.forms)


def _same_named(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    """`D = [0, 1)` twice: the same name, and right sides that are no expressions."""
    if not found.ends == wanted.ends == "=":
        return False
    same_name = plain_words(found.items[0].text) == plain_words(wanted.items[0].text)
    return same_name and _same(found.items[1], wanted.items[1], conventions)


def _same_leaf(found: Answer, wanted: Answer, conventions: Conventions) -> bool:
    for form in found.forms:
        for other in wanted.forms:
            if _same_form(form, other, conventions):
                return True
    if (found.forms or wanted.forms) and not _WORDS.fullmatch(wanted.text):
        # Two expressions that cannot be computed are still the same when they are written alike.
        alike = _dense(found.text) == _dense(wanted.text)
        return alike and bool(found.forms) == bool(wanted.forms) and not _breaks_rule(found, conventions)
    words = plain_words(found.text)
    if not words or words in NO_VALUES:
        return False
    return words == plain_words(wanted.text) or _dense(found.text) == _dense(wanted.text)


def _dense(text: str) -> str:
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", re.sub(r"\s", "", text))


def _breaks_rule(found: Answer, conventions: Conventions) -> bool:
    return conventions.unreduced == "reject" and any(is_unreduced(form.node) for form in found.forms)


def _is_unevaluated(found: Node, wanted: Node) -> bool:
    """Whether a sum, product or power stands where the reference is a plain number."""
    return is_literal(wanted) and not is_literal(found)


def _same_form(found: Form, wanted: Form, conventions: Conventions) -> bool:
    if conventions.unreduced == "reject" and is_unreduced(found.node):
        return False
    if conventions.unevaluated == "reject" and _is_unevaluated(found.node, wanted.node):
        return False
    scale = _unit_scale(found, wanted, conventions)
    if scale is None:
        return False
    scales = [scale]
    if found.percent != wanted.percent and conventions.percent != "ignore":
        hundredth = scale / 100 if found.percent else scale * 100
        scales = [hundredth] if conventions.percent == "hundredth" else [scale, hundredth]
    return any(same_value(found.node, wanted.node, conventions, scale=factor) for factor in scales)


def _unit_scale(found: Form, wanted: Form, conventions: Conventions) -> Fraction | None:
    """What the found number is multiplied with before it is compared; None when the units clash."""
    if conventions.units == "ignore" or wanted.unit is None:
        return Fraction(1)
    if found.unit is None:
        return None if conventions.units == "require" else Fraction(1)
    factor = conversion(found.unit, wanted.unit)
    if factor is None or conventions.units == "convert":
        return factor
    return Fraction(1) if factor == 1 else None


def _choice_letter(answer: str, reference: str) -> bool | None:
    """Whether the answer names the choice that the reference is; None when the reference is no choice."""
    wanted = re.fullmatch(r"\W*(?:\\text\s*\{)?\W*([A-J])\W*", reference)
    found = _CHOICE.match(re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{|[{}$*]", "", answer).strip())
    if wanted is None or found is None:
        return None
    letters = {letter.upper() for letter in _LONE_CHOICE.findall(answer)} | {found[1].upper()}
    return letters == {wanted[1]}


def _is_foreign(answer: Answer) -> bool:
    """Whether there is mathematics in it that our reader does not know."""
    return any(not leaf.forms and _COMMAND.search(leaf.text) for leaf in leaves(answer))
