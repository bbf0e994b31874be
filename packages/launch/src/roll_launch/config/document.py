"""A YAML file as a tree of text with line numbers, and what is wrong with it as a file.

`read_document` is the first step of `load.py`; `yaml_tree.py` does the reading of YAML.
"""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import yaml

from roll_launch.config.nodes import (
    DEEPEST_TREE,
    LARGEST_TREE,
    KeyPath,
    Mark,
    Node,
    Scalar,
    Table,
    dotted,
    mark_of,
)
from roll_launch.config.problems import SHOWN_PATH, ConfigError, Problem, shortened
from roll_launch.config.yaml_tree import Conversion, composed

LARGEST_FILE = 16 * 2**20
"""Bytes. A larger file is not a configuration somebody wrote."""

_FLOW_STARTS = ("{", "[", '"', "'")
_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A configuration as text with places.

    Document(source="examples/quickstart.yaml", root=Table(...), problems=(), secrets=frozenset()).

    Args:
        source: What messages call it: the path as it was given.
        root: The top-level table.
        problems: What was wrong so far, with the file or with what was done to it.
        secrets: Values of credentials that came from the environment, to be masked wherever they are written.
    """

    source: str
    root: Table
    problems: tuple[Problem, ...] = ()
    secrets: frozenset[str] = frozenset()

    def problem(
        self,
        path: KeyPath,
        message: str,
        *,
        got: str | None = None,
        allowed: str | None = None,
        hint: str | None = None,
    ) -> Problem:
        """A problem with the value at `path`, placed at the line of its key."""
        mark = mark_of(self.root, path)
        return Problem(
            source=mark.source,
            line=mark.line,
            path=shortened(dotted(self.root, path), SHOWN_PATH),
            message=message,
            got=got,
            allowed=allowed,
            hint=hint,
        )


def read_document(path: Path) -> Document:
    """The document in a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not text, is no YAML, or its top level is not a mapping.
    """
    source = str(path)
    try:
        if path.is_file() and path.stat().st_size > LARGEST_FILE:
            size = path.stat().st_size / 2**20
            _refuse(
                source, f"has {size:.0f} MiB, which is no configuration", allowed=f"{LARGEST_FILE >> 20} MiB"
            )
        content = path.read_bytes()
    except FileNotFoundError:
        _refuse(source, "no such file", hint=_near_file(path))
    except IsADirectoryError:
        found = sorted(child.name for child in path.glob("*.y*ml"))[:5]
        hint = f"it holds {', '.join(found)}" if found else None
        _refuse(source, "is a directory; a YAML file is expected", hint=hint)
    except OSError as error:
        _refuse(source, f"cannot be read: {error.strerror or error}")
    return parse_document(_decoded(content, source), source=source)


def parse_document(text: str, *, source: str) -> Document:
    """The document in YAML text.

    Raises:
        ConfigError: As for `read_document`. Duplicate keys and tags that are not allowed are in `problems`
            instead.
    """
    node = composed(text, source)
    if node is None:
        _refuse(source, "is empty; a mapping (`key: value` lines) is expected")
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        _refuse(
            source, f"is {kind}; a mapping (`key: value` lines) is expected", line=node.start_mark.line + 1
        )
    conversion = Conversion(source)
    root = conversion.convert(node, ())
    if not isinstance(root, Table):
        raise ConfigError(problem for _, problem in conversion.found)
    document = Document(source=source, root=root)
    refuse_monsters(document)
    located = tuple(replace(p, path=dotted(root, path)) for path, p in conversion.found)
    return replace(document, problems=located)


def parse_value(text: str, mark: Mark) -> Node:
    """The node for one value that stands outside of a file, all of it placed at `mark`.

    YAML flow where it looks like it (`{source: jsonl}`, `[0.9, 0.98]`, `"text"`), else a scalar of just
    this text, whatever characters it has.

    Raises:
        ConfigError: It starts like a mapping, list or quoted text and is not one.
    """
    bare = text.strip()
    if not bare.startswith(_FLOW_STARTS):
        return Scalar(text=bare, style="free", mark=mark)
    conversion = Conversion(mark.source, everywhere=mark)
    node = composed(bare, mark.source)
    if node is None:
        raise TypeError(f"PyYAML composed nothing from {bare!r}")
    converted = conversion.convert(node, ())
    if conversion.found:
        raise ConfigError(problem for _, problem in conversion.found)
    return converted


def refuse_monsters(document: Document) -> None:
    """Refuses trees that are too large or too deep once aliases and references are expanded.

    Raises:
        ConfigError: It is.
    """
    if document.root.size > LARGEST_TREE:
        _refuse(
            document.source, f"holds more than {LARGEST_TREE} values once aliases and references are expanded"
        )
    if document.root.depth > DEEPEST_TREE:
        _refuse(document.source, f"is nested deeper than {DEEPEST_TREE} levels")


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode(_BYTE_ORDER_MARKS.get(content[:2], "utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        got = f"byte 0x{content[error.start]:02x} at offset {error.start}"
        _refuse(source, "is not UTF-8 text", line=line, got=got, hint="save the file as UTF-8")


def _near_file(path: Path) -> str | None:
    """The file that was probably meant."""
    try:
        names = [child.name for child in path.parent.iterdir()]
    except OSError:
        return f"there is no directory {path.parent}"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


def _refuse(
    source: str,
    message: str,
    *,
    line: int | None = None,
    got: str | None = None,
    allowed: str | None = None,
    hint: str | None = None,
) -> NoReturn:
    raise ConfigError(
        [Problem(source=source, line=line, message=message, got=got, allowed=allowed, hint=hint)]
    )
