"""A configuration as a tree of text with places, before any schema is applied.

Scalars keep their text: what it means is decided by the field that reads it (`scalars.py`). Nodes are
immutable; `overrides.py` and `references.py` return changed trees. Every node knows where it was written,
so that whoever finds a mistake can name the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

LARGEST_TREE = 200_000
"""Nodes after aliases and references are expanded; needing more is a mistake or an attack."""

DEEPEST_TREE = 50
"""Levels of nesting, far above what a person writes and far below what recursion can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where something was written: Mark(source="examples/quickstart.yaml", line=12)."""

    source: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value as text.

    Scalar(text="1e-6", style="plain", mark=Mark(source="x.yaml", line=3)).

    Args:
        text: Without quotes.
        style: "plain" is read by the rules of `scalars.py`; "quoted" is text whatever it looks like; "free"
            came from a command line or the environment, where quotes are lost: like plain, but a number
            will do for text.
        mark: Where.
    """

    text: str
    style: Literal["plain", "quoted", "free"]
    mark: Mark

    @property
    def size(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A YAML sequence."""

    nodes: tuple["Node", ...]
    mark: Mark
    size: int = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(node.size for node in self.nodes))
        object.__setattr__(self, "depth", 1 + max((node.depth for node in self.nodes), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key of a table: where the key stands, and its value."""

    mark: Mark
    node: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A YAML mapping, in the order of the file."""

    entries: Mapping[str, Entry]
    mark: Mark
    size: int = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        nodes = [entry.node for entry in self.entries.values()]
        object.__setattr__(self, "size", 1 + sum(node.size for node in nodes))
        object.__setattr__(self, "depth", 1 + max((node.depth for node in nodes), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A value that could not be read; its problem is reported already, so that nobody reports it again."""

    mark: Mark

    @property
    def size(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 1


Node: TypeAlias = Scalar | Items | Table | Broken
KeyPath: TypeAlias = tuple[str | int, ...]


def item_name(node: Node) -> str | None:
    """The `name` of a list item that has one: what people call it by."""
    if isinstance(node, Table) and "name" in node.entries:
        name = node.entries["name"].node
        if isinstance(name, Scalar) and name.text and "${" not in name.text:
            return name.text
    return None


def step_into(node: Node, segment: str | int) -> tuple[str | int, Node] | None:
    """One step down: the child of a table by key, of a list by index or by the name of the item; None if
    none.

    Returns:
        The key or index that was meant, and the child.
    """
    if isinstance(node, Table):
        entry = node.entries.get(str(segment))
        return (str(segment), entry.node) if entry else None
    if isinstance(node, Items):
        index = _index(node, segment)
        return (index, node.nodes[index]) if index is not None else None
    return None


def children(node: Node) -> Iterator[tuple[str | int, Node]]:
    """The children of a node with their keys or indices."""
    if isinstance(node, Table):
        for key, entry in node.entries.items():
            yield key, entry.node
    elif isinstance(node, Items):
        yield from enumerate(node.nodes)


def choices(node: Node) -> list[str]:
    """What a step down may be called at `node`: keys, or names and indices of list items."""
    if isinstance(node, Items):
        return [item_name(child) or str(index) for index, child in enumerate(node.nodes)]
    return [str(key) for key, _ in children(node)]


def dotted(root: Node, path: Sequence[str | int]) -> str:
    """`path` as people write it: list items by their name where they have one."""
    words: list[str] = []
    node: Node | None = root
    for segment in path:
        step = step_into(node, segment) if node is not None else None
        node = step[1] if step else None
        name = item_name(node) if isinstance(segment, int) and node is not None else None
        words.append(name or str(segment))
    return ".".join(words)


def mark_of(root: Node, path: Sequence[str | int]) -> Mark:
    """Where the key at `path` stands; where it is absent, the nearest key above it."""
    node, mark = root, root.mark
    for segment in path:
        step = step_into(node, segment)
        if step is None:
            break
        mark = node.entries[str(segment)].mark if isinstance(node, Table) else step[1].mark
        node = step[1]
    return mark


def _index(items: Items, segment: str | int) -> int | None:
    if isinstance(segment, int) or segment.isdecimal():
        index = int(segment) if len(str(segment)) < 10 else len(items.nodes)
        return index if 0 <= index < len(items.nodes) else None
    named = (index for index, node in enumerate(items.nodes) if item_name(node) == segment)
    return next(named, None)
