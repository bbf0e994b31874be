"""Values from the command line: `a.b.c=value`, `+a.b=value`, `--a.b=value` and `--a.b value`.

Used by `load.py` between reading the file and resolving references. Keys are not looked up in the schema
here: a key that does not exist is refused by the same check as in the file, and said to come from the
command line.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from roll_launch.config.credentials import masked_line
from roll_launch.config.document import Document, parse_value
from roll_launch.config.nodes import (
    Broken,
    Entry,
    Items,
    Mark,
    Node,
    Scalar,
    Table,
    choices,
    step_into,
)
from roll_launch.config.problems import ConfigError, Problem, shortened
from roll_launch.config.scalars import NULLS

COMMAND_LINE = Mark(source="command line")
FORMS = "key.key=value, +key.key=value, --key.key=value, --key.key value"


class OverrideError(Exception):
    """An override cannot be applied; `args` are the message and a hint or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One value to set: Override(path=("stages", "rlvr", "steps"), value=Scalar(text="5", ...))."""

    path: tuple[str, ...]
    value: Node


def apply_overrides(document: Document, arguments: Sequence[str]) -> Document:
    """The document with values from a command line set, in order; the last of two for one key wins.

    A key that the file does not have is added. A list item is named by its index or by its `name`. Mappings
    and lists (`{a: 1}`, `[1, 2]`) replace what was there.

    Args:
        document: As read from the file.
        arguments: Words of the command line.
    """
    problems = list(document.problems)
    root: Node = document.root
    for key, text in _pairs(arguments, problems):
        try:
            override = Override(path=_path(key), value=parse_value(text, COMMAND_LINE))
            root = _set(root, override.path, override.value, ())
        except OverrideError as error:
            message, hint = error.args
            problems.append(_problem(key, message, hint))
        except ConfigError as error:
            problems.extend(replace(p, path=key, line=None) for p in error.problems)
    return replace(
        document, root=root if isinstance(root, Table) else document.root, problems=tuple(problems)
    )


def _pairs(arguments: Sequence[str], problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """Key and value text of each argument; what has neither form is reported."""
    words = iter(range(len(arguments)))
    for index in words:
        argument = arguments[index]
        key, equals, text = argument.partition("=")
        if key.startswith("--") and not equals:
            following = arguments[index + 1] if index + 1 < len(arguments) else None
            if following is None or following.startswith("--"):
                problems.append(_problem(key.lstrip("-"), "has no value", f"write {key} value"))
                continue
            next(words)
            yield key[2:], following
        elif not equals:
            what = (
                f"{shortened(masked_line(argument))!r} is not an override"
                if argument.strip()
                else "empty override"
            )
            problems.append(replace(_problem("", what, None), allowed=FORMS))
        else:
            yield (key[2:] if key.startswith("--") else key.lstrip("+")).strip(), text


def _path(key: str) -> tuple[str, ...]:
    path = tuple(key.split("."))
    if not all(path):
        raise OverrideError(
            "is no key" if key else "an override without a key", f"one of {FORMS} is expected"
        )
    return path


def _set(node: Node, path: tuple[str, ...], value: Node, above: tuple[str, ...]) -> Node:
    """`node` with `value` at `path` below it."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    here = ".".join(above)
    if isinstance(node, Items):
        step = step_into(node, head)
        if step is None:
            raise OverrideError(*_no_item(node, head, here))
        index = int(step[0])
        changed = _set(node.nodes[index], rest, value, (*above, head))
        return replace_items(node, index, changed)
    if isinstance(node, Scalar) and (node.style == "quoted" or node.text not in NULLS):
        what = f"{here} is a single value ({shortened(node.text)}) and has no keys"
        raise OverrideError(what, f"set it whole, as a mapping: {here}={{key: value, ..}}")
    if isinstance(node, Broken):
        return node
    entries = dict(node.entries) if isinstance(node, Table) else {}
    below = entries[head].node if head in entries else Table(entries={}, mark=COMMAND_LINE)
    mark = entries[head].mark if rest and head in entries else COMMAND_LINE
    entries[head] = Entry(mark=mark, node=_set(below, rest, value, (*above, head)))
    return Table(entries=entries, mark=node.mark)


def replace_items(items: Items, index: int, node: Node) -> Items:
    """`items` with another node at `index`."""
    return Items(nodes=(*items.nodes[:index], node, *items.nodes[index + 1 :]), mark=items.mark)


def _no_item(items: Items, head: str, here: str) -> tuple[str, str | None]:
    names = choices(items)
    count = len(items.nodes)
    if head.lstrip("-").isdecimal():
        allowed = f"0 to {count - 1}" if count else "none, the list is empty"
        return (
            f"{here} has {count} item{'' if count == 1 else 's'}; there is no {head}",
            f"allowed: {allowed}",
        )
    near = difflib.get_close_matches(head, names, n=1)
    return (
        f"{here} has no item named {head}",
        f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names) or 'none, the list is empty'}",
    )


def _problem(key: str, message: str, hint: str | None) -> Problem:
    return Problem(source=COMMAND_LINE.source, path=key, message=message, hint=hint)
