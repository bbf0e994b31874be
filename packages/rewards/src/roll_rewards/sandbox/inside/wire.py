"""Plain values as JSON with their exact types, so that a judge compares values and nothing else.

Used on both sides. Reading never runs anything; writing happens in the program's process, which may send
whatever it likes: that equals returning another value.
"""

import json
from collections.abc import Callable
from typing import Any

_DEPTH = 200

Export = Callable[[object], "list[Any] | None"]
Import = Callable[[list[Any]], object]


class NotPlainError(ValueError):
    """A value, or a text read, that is not plain data."""


def dumps(value: object, export: Export | None = None) -> bytes:
    """A value as bytes: None, bool, int, float, complex, str, bytes, list, tuple, set, dict.

    Subclasses are reduced to the plain value in them, numpy's scalars and arrays to numbers and lists.

    Args:
        value: What to write.
        export: Writes other objects; returns None for what it does not know.

    Raises:
        NotPlainError: Something is of another type, or nested too deeply.
    """
    return json.dumps(encode(value, export)).encode("ascii")


def loads(data: bytes, import_: Import | None = None) -> object:
    """The value in bytes that `dumps` wrote, or that pretend to be such.

    Args:
        data: What was read.
        import_: Reads what `export` wrote.

    Raises:
        NotPlainError: The bytes are something else.
    """
    try:
        return decode(json.loads(data), import_)
    except NotPlainError:
        raise
    except (ValueError, TypeError, IndexError, RecursionError, OverflowError) as error:
        raise NotPlainError(f"not a plain value: {type(error).__name__}: {error}"[:300]) from error


def encode(value: object, export: Export | None = None, depth: int = 0) -> list[Any]:
    """The JSON form of a value. See `dumps`."""
    if depth > _DEPTH:
        raise NotPlainError(f"nested more than {_DEPTH} deep")
    if value is None:
        return ["n"]
    if isinstance(value, bool):
        return ["B", bool(value)]
    if isinstance(value, int):
        return ["i", hex(int.__add__(value, 0))]
    if isinstance(value, float):
        return ["f", float.__repr__(float.__add__(value, 0.0))]
    if isinstance(value, complex):
        return ["c", complex.__repr__(complex.__add__(value, 0))]
    if isinstance(value, str):
        return ["s", "".join([value])]
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    many = _encode_many(value, export, depth + 1)
    if many is None and export is not None:
        many = export(value)
    if many is None:
        raise NotPlainError(f"a {type(value).__name__} is not plain data")
    return many


def _encode_many(value: object, export: Export | None, depth: int) -> list[Any] | None:
    if isinstance(value, list):
        return ["l", [encode(item, export, depth) for item in list.__iter__(value)]]
    if isinstance(value, tuple):
        return ["t", [encode(item, export, depth) for item in tuple.__iter__(value)]]
    if isinstance(value, set):
        return ["S", [encode(item, export, depth) for item in set.__iter__(value)]]
    if isinstance(value, frozenset):
        return ["S", [encode(item, export, depth) for item in frozenset.__iter__(value)]]
    if isinstance(value, dict):
        return ["d", [[encode(k, export, depth), encode(v, export, depth)] for k, v in dict.items(value)]]
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("collections", "deque") or kind in _VIEWS:
        return ["l", [encode(item, export, depth) for item in list(value)]]  # type: ignore[call-overload]
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), export, depth)
    return None


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), range)


def decode(data: Any, import_: Import | None = None, depth: int = 0) -> Any:
    """The value of a JSON form. See `loads`."""
    if depth > _DEPTH + 2:
        raise NotPlainError(f"nested more than {_DEPTH} deep")
    if not isinstance(data, list) or not data:
        raise NotPlainError("not in the form of a plain value")
    match data:
        case ["n"]:
            return None
        case ["B", bool() as flag]:
            return flag
        case ["i", str() as digits]:
            return int(digits, 16)
        case ["f", str() as digits]:
            return float(digits)
        case ["c", str() as digits]:
            return complex(digits)
        case ["s", str() as text]:
            return text
        case ["b", str() as digits]:
            return bytes.fromhex(digits)
        case ["l" | "t" | "S" as kind, list() as items]:
            values = [decode(item, import_, depth + 1) for item in items]
            return values if kind == "l" else tuple(values) if kind == "t" else set(values)
        case ["d", list() as pairs]:
            return {decode(k, import_, depth + 1): decode(v, import_, depth + 1) for k, v in pairs}
    if import_ is None:
        raise NotPlainError(f"not in the form of a plain value: {str(data)[:80]}")
    return import_(data)
