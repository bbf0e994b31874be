"""YAML text to nodes: PyYAML's composer without its guesses at types, duplicate keys found, places kept.

Used by `document.py`. None of YAML 1.1's surprises happens here, because scalars keep their text
(`scalars.py`). The constructors of PyYAML are never used, so that no tag can make an object.
"""

import yaml

from roll_launch.config.credentials import masked_line
from roll_launch.config.nodes import DEEPEST_TREE, Broken, Entry, Items, KeyPath, Mark, Node, Scalar, Table
from roll_launch.config.problems import ConfigError, Problem, shortened
from roll_launch.config.scalars import read_any

_TYPE_TAGS: dict[str, type] = {
    f"tag:yaml.org,2002:{name}": kind
    for name, kind in (("bool", bool), ("float", float), ("int", int), ("null", type(None)))
}
LONGEST_EXCERPT = 150
"""Characters of a broken line that are shown."""

_TEXT_TAG = "tag:yaml.org,2002:str"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser where there is one
    """Says of a scalar without a tag only whether it was plain, instead of guessing a type from its text."""

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        if kind is not yaml.ScalarNode or not isinstance(implicit, tuple):
            return kind.__name__
        return "plain" if implicit[0] else "quoted"


def composed(text: str, source: str) -> yaml.Node | None:
    """PyYAML's node of the one document in `text`; None where it is empty.

    Raises:
        ConfigError: It is not valid YAML; shows the line.
    """
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, text, source)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"holds the control character U+{character:04X}, which YAML does not allow"
        raise ConfigError([Problem(source=source, line=line, message=message)]) from None
    except RecursionError:
        message = f"is nested deeper than {DEEPEST_TREE} levels"
        raise ConfigError([Problem(source=source, message=message)]) from None
    return node


class Conversion:
    """From PyYAML's nodes to ours: merges `<<`, finds duplicate keys, keeps places.

    Args:
        source: Of every mark.
        everywhere: One mark for all nodes instead, for values of a command line.
    """

    def __init__(self, source: str, everywhere: Mark | None = None) -> None:
        self._source = source
        self._everywhere = everywhere
        self._active: list[int] = []
        self._done: dict[int, Node] = {}
        self.found: list[tuple[KeyPath, Problem]] = []

    def convert(self, node: yaml.Node, path: KeyPath) -> Node:
        """Our node for PyYAML's at `path`; mistakes go to `found`."""
        if id(node) in self._done:
            return self._done[id(node)]
        if id(node) in self._active:
            return self._broken(node, path, "an anchor that contains itself")
        if len(self._active) > DEEPEST_TREE:
            return self._broken(node, (), f"nested deeper than {DEEPEST_TREE} levels")
        self._active.append(id(node))
        if isinstance(node, yaml.MappingNode):
            converted: Node = self._table(node, path)
        elif isinstance(node, yaml.SequenceNode):
            converted = self._items(node, path)
        elif isinstance(node, yaml.ScalarNode):
            converted = self._scalar(node, path)
        else:
            raise TypeError(f"PyYAML composed a {type(node).__name__}")
        self._active.pop()
        self._done[id(node)] = converted
        return converted

    def _table(self, node: yaml.MappingNode, path: KeyPath) -> Node:
        if not _allowed_tag(node, "map", "MappingNode"):
            return self._broken(node, path, f"tag {_short_tag(node)} is not allowed")
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._broken(key_node, path, "a key must be text, not a list or a mapping")
            elif key_node.value == "<<" and key_node.tag == "plain":
                for key, entry in self._merged(value_node, path).items():
                    merged.setdefault(key, entry)
            elif key_node.value in entries:
                lines = f"lines {entries[key_node.value].mark.line} and {self._mark(key_node).line}"
                where = f", on {lines}" if self._everywhere is None else ""
                self._broken(key_node, (*path, key_node.value), f"key {key_node.value} is given twice{where}")
            else:
                value = self.convert(value_node, (*path, key_node.value))
                entries[key_node.value] = Entry(mark=self._mark(key_node), node=value)
        return Table(entries={**merged, **entries}, mark=self._mark(node))

    def _items(self, node: yaml.SequenceNode, path: KeyPath) -> Node:
        if not _allowed_tag(node, "seq", "SequenceNode"):
            return self._broken(node, path, f"tag {_short_tag(node)} is not allowed")
        nodes = tuple(self.convert(child, (*path, index)) for index, child in enumerate(node.value))
        return Items(nodes=nodes, mark=self._mark(node))

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Entry]:
        """What a merge key `<<` brings: one mapping, or several of which the first wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Entry] = {}
        for source in sources:
            converted = self.convert(source, path)
            if isinstance(converted, Table):
                merged = {**converted.entries, **merged}
            elif not isinstance(converted, Broken):
                self._broken(source, path, "the merge key << takes a mapping or a list of mappings")
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Node:
        mark = self._mark(node)
        if node.tag == "plain" or type(read_any(node.value)) is _TYPE_TAGS.get(node.tag):
            return Scalar(text=node.value, style="plain", mark=mark)
        if node.tag in ("quoted", _TEXT_TAG, "!"):
            return Scalar(text=node.value, style="quoted", mark=mark)
        what = f"tag {_short_tag(node)} is not allowed for {shortened(masked_line(node.value)) or 'nothing'}"
        return self._broken(node, path, what)

    def _mark(self, node: yaml.Node) -> Mark:
        return self._everywhere or Mark(source=self._source, line=node.start_mark.line + 1)

    def _broken(self, node: yaml.Node, path: KeyPath, message: str) -> Node:
        mark = self._mark(node)
        self.found.append((path, Problem(source=mark.source, line=mark.line, message=message)))
        return Broken(mark=mark)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, source: str) -> Problem:
    """Broken YAML with its place and the line, marked under the column."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(source=source, message=f"not valid YAML: {error.problem}")
    lines = text.splitlines()
    # A parser that misses something at the end points after the last line.
    row = min(mark.line, len(lines) - 1)
    column = mark.column if row == mark.line else len(lines[row])
    message = f"not valid YAML (column {column + 1}): {error.problem}"
    if error.context_mark is not None and error.context_mark.line != mark.line:
        message += f", {error.context}, line {error.context_mark.line + 1}"
    hint = None
    if "\t" in lines[row][: column + 1]:
        hint = "indent with spaces; YAML does not allow tabs (→) there"
    elif "${" in lines[row]:
        hint = 'inside of { } and [ ] write references in quotes: "${a.b}"'
    shown = masked_line(lines[row][:LONGEST_EXCERPT].replace("\t", "→"))
    caret = "" if column >= LONGEST_EXCERPT else f"\n    {' ' * column}^"
    return Problem(
        source=source,
        line=row + 1,
        message=message,
        hint=hint,
        excerpt=f"    {shown}{caret}",
    )


def _allowed_tag(node: yaml.Node, name: str, untagged: str) -> bool:
    return node.tag in (untagged, "!", f"tag:yaml.org,2002:{name}")


def _short_tag(node: yaml.Node) -> str:
    return shortened(node.tag.replace("tag:yaml.org,2002:", "!!"))
