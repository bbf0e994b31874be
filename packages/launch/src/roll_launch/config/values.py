"""One scalar as the type that a field declares, and values in messages. Used by `reading.py`."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from roll_launch.config.annotations import NamesShape, ScalarKind, ScalarShape
from roll_launch.config.credentials import MASK, is_credential, masked_data
from roll_launch.config.nodes import Broken, Items, KeyPath, Node, Scalar, Table
from roll_launch.config.problems import shortened
from roll_launch.config.scalars import (
    NULLS,
    ScalarError,
    read_any,
    read_bool,
    read_float,
    read_int,
    read_str,
)

NOT = {
    "bool": "not a boolean",
    "int": "not an int",
    "float": "not a float",
    "str": "not text",
    "path": "not a path",
    "null": "not null",
}


class UnreadableValue(Exception):
    """A scalar is not what the field declares.

    Args:
        message: What it is not.
        hint: What to write instead, or None.
        about_null: Whether all that was refused is that it is not null.
    """

    def __init__(self, message: str, hint: str | None = None, *, about_null: bool = False) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint
        self.about_null = about_null


def value_of(shape: ScalarShape | NamesShape, node: Scalar) -> object:
    """The value of a scalar for a field of this shape.

    Raises:
        UnreadableValue: It is of another type; nothing is converted that was not written as that type.
    """
    if isinstance(shape, NamesShape):
        return _named(shape.names, node)
    if shape.kind in ("str", "path"):
        text = _text(node, shape.kind)
        return text if shape.kind == "str" else _path(text)
    if shape.kind == "null":
        if is_null(node):
            return None
        raise UnreadableValue(NOT["null"], about_null=True)
    if is_null(node):
        raise UnreadableValue("has no value")
    if node.style == "quoted":
        raise UnreadableValue(NOT[shape.kind], _without_quotes(shape.kind, node.text))
    try:
        return _READERS[shape.kind](node.text)
    except ScalarError as error:
        raise UnreadableValue(NOT[shape.kind], error.args[0]) from None


def untyped(node: Node) -> object:
    """Nested data for a value without a declared type, by YAML 1.2's core rules."""
    if isinstance(node, Table):
        return {key: untyped(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, Items):
        return [untyped(child) for child in node.nodes]
    if isinstance(node, Broken):
        raise TypeError("a broken value has no data")
    return node.text if node.style == "quoted" else read_any(node.text)


def shown(node: Node, path: KeyPath) -> str | None:
    """A value and its type for a message, credentials masked; None for what cannot be shown."""
    if isinstance(node, Broken):
        return None
    if isinstance(node, Table):
        return f"mapping with {shortened(', '.join(node.entries)) or 'no keys'}"
    if isinstance(node, Items):
        return f"list of {len(node.nodes)}"
    if is_null(node):
        return "null" if node.text else "nothing (null)"
    kind = "str" if node.style == "quoted" else type(read_any(node.text)).__name__
    if any(is_credential(str(key)) for key in path):
        return f"{MASK} ({kind})"
    text = shortened(str(masked_data(node.text)))
    return f'"{text}" ({kind})' if node.style == "quoted" else f"{text} ({kind})"


def is_null(node: Scalar) -> bool:
    """Whether a scalar is YAML's null: nothing, `~` or `null`, without quotes."""
    return node.style != "quoted" and node.text in NULLS


def _named(names: Mapping[str, object], node: Scalar) -> object:
    value = names.get(node.text)
    if node.text in names and (isinstance(value, str) or node.style != "quoted"):
        return value
    if is_null(node):
        raise UnreadableValue("has no value")
    normal = {name.lower().replace("-", "_"): name for name in names}
    near = difflib.get_close_matches(node.text.lower().replace("-", "_"), list(normal), n=1)
    raise UnreadableValue("not an allowed name", f"did you mean {normal[near[0]]}?" if near else None)


def _text(node: Scalar, kind: ScalarKind) -> str:
    if node.style == "quoted":
        return node.text
    if is_null(node):
        raise UnreadableValue(
            "has no value", f'for text write "{node.text}" in quotes' if node.text else None
        )
    if node.style == "free" and not isinstance(read_any(node.text), bool):
        return node.text
    try:
        return read_str(node.text)
    except ScalarError as error:
        raise UnreadableValue(NOT[kind], error.args[0]) from None


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise UnreadableValue(NOT["path"], "write the path of a file or directory")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UnreadableValue(f"{NOT['path']}: {error}") from None


def _without_quotes(kind: ScalarKind, text: str) -> str | None:
    try:
        _READERS[kind](text.strip())
    except ScalarError as error:
        return str(error.args[0]) if error.args[0] is not None else None
    return f"write {shortened(text)} without quotes"


_READERS: Mapping[str, Callable[[str], object]] = {"bool": read_bool, "int": read_int, "float": read_float}
