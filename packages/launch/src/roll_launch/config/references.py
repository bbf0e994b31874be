"""`${a.b.c}` and `${env:NAME}` or `${env:NAME,default}` in values, resolved or refused by name.

Used by `load.py` after the command line's values are set. A value that is one reference takes the value
referred to, whatever its type; a reference within text is written into the text. `$${` stands for a literal
`${`.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from roll_launch.config.credentials import is_credential
from roll_launch.config.document import Document, parse_value
from roll_launch.config.nodes import (
    DEEPEST_TREE,
    Broken,
    Entry,
    Items,
    KeyPath,
    Mark,
    Node,
    Scalar,
    Table,
    children,
    choices,
    dotted,
    mark_of,
    step_into,
)
from roll_launch.config.problems import SHOWN_PROBLEMS, ConfigError, Problem, shortened
from roll_launch.config.scalars import NULLS

_ENVIRONMENT = re.compile(r"(?:oc\.)?env:\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*(?P<rest>,.*)?", re.DOTALL)
_OPENING = re.compile(r"\$?\$\{")
_DOTTED = re.compile(r"[^.${}:,\s]+(\.[^.${}:,\s]+)*")
SHORTEST_SECRET = 4
"""Characters; a shorter value of the environment is part of ordinary words and not masked in them."""


class UnresolvedReference(Exception):
    """A reference that cannot be resolved; `args` are the message and a hint or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What stands between `${` and `}`: Reference(inside="learner.learning_rate")."""

    inside: str

    def __str__(self) -> str:
        return f"${{{self.inside}}}"


def resolve_references(document: Document, environment: Mapping[str, str]) -> Document:
    """The document with every reference replaced; those that cannot be are problems and leave `Broken`
    values.

    Args:
        document: With the command line's values in place.
        environment: For `${env:NAME}`.
    """
    resolver = _Resolver(document.root, environment)
    root = resolver.resolve(document.root, ())
    return replace(
        document,
        root=root if isinstance(root, Table) else document.root,
        problems=(*document.problems, *resolver.problems),
        secrets=document.secrets | resolver.secrets,
    )


def parts_of(text: str) -> list[str | Reference]:
    """Text cut into literal text and references.

    Raises:
        UnresolvedReference: A `${` has no `}`.
    """
    parts: list[str | Reference] = []
    literal, position = "", 0
    while (found := _OPENING.search(text, position)) is not None:
        literal += text[position : found.start()]
        if found[0] == "$${":
            literal, position = literal + "${", found.end()
        else:
            end = _closing(text, found.end())
            parts += [literal, Reference(inside=text[found.end() : end].strip())]
            literal, position = "", end + 1
    parts.append(literal + text[position:])
    return [part for part in parts if part != ""] or [""]


class _Resolver:
    """Resolves depth first, each scalar once; `active` holds the keys being resolved, to find circles."""

    def __init__(self, root: Table, environment: Mapping[str, str]) -> None:
        self._root = root
        self._environment = environment
        self._done: dict[KeyPath, Node] = {}
        self._active: list[KeyPath] = []
        self.problems: list[Problem] = []
        self.secrets: frozenset[str] = frozenset()

    def resolve(self, node: Node, path: KeyPath) -> Node:
        """`node` without references; `path` is where it stands in the document."""
        if isinstance(node, Table):
            entries = {
                key: Entry(mark=entry.mark, node=self.resolve(entry.node, (*path, key)))
                for key, entry in node.entries.items()
            }
            return Table(entries=entries, mark=node.mark)
        if isinstance(node, Items):
            nodes = tuple(self.resolve(child, (*path, index)) for index, child in enumerate(node.nodes))
            return Items(nodes=nodes, mark=node.mark)
        if isinstance(node, Scalar) and "${" in node.text:
            return self._scalar(node, path)
        return node

    def _scalar(self, node: Scalar, path: KeyPath) -> Node:
        if path not in self._done:
            try:
                # A circle is found, and marked broken, while the scalar that starts it is being resolved.
                self._done.setdefault(path, self._guarded(node, path))
            except UnresolvedReference as error:
                message, hint = error.args
                place = mark_of(self._root, path)
                where = dotted(self._root, path)
                self.problems.append(
                    Problem(source=place.source, line=place.line, path=where, message=message, hint=hint)
                )
                self._done[path] = Broken(mark=node.mark)
        return self._done[path]

    def _guarded(self, node: Scalar, path: KeyPath) -> Node:
        """The value of the scalar at `path`, refusing circles and endless chains."""
        if path in self._active:
            circle = [*self._active[self._active.index(path) :], path]
            chain = " -> ".join(dotted(self._root, place) for place in circle)
            raise UnresolvedReference(f"circular reference {node.text}: {chain}", None)
        if len(self._active) >= DEEPEST_TREE:
            raise UnresolvedReference(
                f"reference {node.text}: a chain of more than {DEEPEST_TREE} references", None
            )
        self._active.append(path)
        try:
            return self._value(parts_of(node.text), node)
        finally:
            self._active.pop()

    def _value(self, parts: list[str | Reference], node: Scalar) -> Node:
        if len(parts) == 1 and isinstance(parts[0], Reference):
            return self._target(parts[0], node.mark)
        words: list[str] = []
        for part in parts:
            target = self._target(part, node.mark) if isinstance(part, Reference) else None
            if isinstance(target, Broken):
                return target
            words.append(_embedded(target, part) if target is not None else str(part))
        return Scalar(text="".join(words), style="quoted", mark=node.mark)

    def _target(self, reference: Reference, mark: Mark) -> Node:
        """What a reference stands for, placed where the reference stands."""
        environment = _ENVIRONMENT.fullmatch(reference.inside)
        if environment is not None:
            return self._from_environment(environment["name"], environment["rest"], mark)
        if not _DOTTED.fullmatch(reference.inside):
            raise UnresolvedReference(
                f"reference {reference} has no known form",
                "allowed: ${a.b.c}, ${env:NAME}, ${env:NAME,default}",
            )
        return replace(self._looked_up(reference), mark=mark)

    def _looked_up(self, reference: Reference) -> Node:
        node: Node = self._root
        path: KeyPath = ()
        resolved = False
        for segment in reference.inside.split("."):
            if not resolved and isinstance(node, Scalar) and "${" in node.text:
                node, resolved = self._scalar(node, path), True
            if isinstance(node, Broken):
                return node
            step = step_into(node, segment)
            if step is None:
                raise UnresolvedReference(
                    f"unresolved reference {reference}", self._hint(node, path, segment)
                )
            path, node = (*path, step[0]), step[1]
        return node if resolved else self.resolve(node, path)

    def _from_environment(self, name: str, rest: str | None, mark: Mark) -> Node:
        value = self._environment.get(name)
        if value is not None:
            if is_credential(name) and len(value) >= SHORTEST_SECRET:
                self.secrets |= {value}
            return Scalar(text=value, style="free" if value else "quoted", mark=mark)
        if rest is None:
            near = difflib.get_close_matches(name, list(self._environment), n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else f"set it, or write ${{env:{name},default}}"
            raise UnresolvedReference(
                f"unresolved reference ${{env:{name}}}: the variable {name} is not set", hint
            )
        default = rest[1:].strip()
        if "${" in default:
            return self._value(parts_of(default), Scalar(text=default, style="free", mark=mark))
        try:
            return parse_value(default, mark)
        except ConfigError as error:
            raise UnresolvedReference(
                f"the default of ${{env:{name}}}: {error.problems[0].message}", None
            ) from error

    def _hint(self, node: Node, path: KeyPath, segment: str) -> str | None:
        """The nearest key at the step that failed, else one of that name elsewhere."""
        if len(self.problems) >= SHOWN_PROBLEMS:
            return None  # Not shown, and each search goes over the whole document.
        near = difflib.get_close_matches(segment.replace("-", "_"), choices(node), n=1)
        if near:
            return f"did you mean ${{{'.'.join([dotted(self._root, path), near[0]]).lstrip('.')}}}?"
        elsewhere = next((place for place in _all_paths(self._root, ()) if place[-1] == segment), None)
        if elsewhere is not None:
            return f"did you mean ${{{dotted(self._root, elsewhere)}}}?"
        known = choices(node)
        where = dotted(self._root, path) or "the top level"
        if not known:
            return f"{where} has no keys"
        return f"{where} has {shortened(', '.join(known))}"


def _embedded(node: Node, reference: str | Reference) -> str:
    """The text of a scalar inside other text."""
    if not isinstance(node, Scalar):
        kind = "list" if isinstance(node, Items) else "mapping"
        raise UnresolvedReference(f"reference {reference} is a {kind} and cannot stand within text", None)
    if node.style != "quoted" and node.text in NULLS:
        raise UnresolvedReference(f"reference {reference} is null and cannot stand within text", None)
    return node.text


def _closing(text: str, position: int) -> int:
    """Where the brace that is open at `position` closes."""
    depth = 1
    for index in range(position, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise UnresolvedReference("a reference ${ without its }", "a literal ${ is written $${")


def _all_paths(node: Node, path: KeyPath) -> list[KeyPath]:
    paths: list[KeyPath] = []
    for key, child in children(node):
        paths.append((*path, key))
        paths.extend(_all_paths(child, (*path, key)))
    return paths
