"""From text with places to an instance of the schema, collecting everything that is wrong on the way.

Used by `load.py` as the last step. Models are built from the leaves up, so that pydantic's constraints and
the sections' own findings are reported for every part that is well-formed, each with the key and line it is
about.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from roll_launch.config.annotations import (
    AnyShape,
    ListShape,
    ModelShape,
    NamesShape,
    ScalarShape,
    Shape,
    TableShape,
    UnionShape,
    described,
    described_field,
    listed,
    shapes_of_fields,
)
from roll_launch.config.credentials import is_credential
from roll_launch.config.document import Document
from roll_launch.config.nodes import Broken, Entry, Items, KeyPath, Node, Scalar, Table, children, step_into
from roll_launch.config.outline import ANY, Place, explain_unknown
from roll_launch.config.problems import Problem, shortened
from roll_launch.config.section import Section
from roll_launch.config.values import NOT, UnreadableValue, is_null, shown, untyped, value_of

Schema = TypeVar("Schema", bound=BaseModel)


class Failed:
    """Stands for a value whose problem is reported; pydantic refuses it wherever a type is declared."""


FAILED = Failed()


class Reading(Generic[Schema]):
    """Reads one document by one schema.

    Args:
        document: With references resolved.
        schema: The model of the whole document.
    """

    def __init__(self, document: Document, schema: type[Schema]) -> None:
        self._document = document
        self._schema = schema
        self.problems: list[Problem] = []

    def read(self) -> Schema | None:
        """The instance, or None where it cannot be built; then `problems` says why."""
        value = self._model(self._schema, self._document.root, (), Place(), {})
        return value if isinstance(value, self._schema) else None

    def _value(self, shape: Shape, node: Node, path: KeyPath, place: Place, allowed: str) -> object:
        if isinstance(node, Broken):
            return FAILED
        if isinstance(shape, UnionShape):
            return self._union(shape, node, path, place, allowed)
        if isinstance(shape, ModelShape):
            return self._model(shape.model, node, path, place, {})
        if isinstance(shape, TableShape) and isinstance(node, Table):
            return self._table(shape, node, path, place)
        if isinstance(shape, ListShape) and isinstance(node, Items):
            return self._list(shape, node, path, place)
        if isinstance(shape, AnyShape):
            return FAILED if _has_broken(node) else untyped(node)
        if isinstance(shape, ScalarShape | NamesShape) and isinstance(node, Scalar):
            try:
                return value_of(shape, node)
            except UnreadableValue as error:
                return self._refuse(path, error.message, node=node, allowed=allowed, hint=error.hint)
        single = isinstance(shape, ListShape) and isinstance(node, Scalar) and not is_null(node)
        hint = f"write [{shortened(node.text)}]" if single and isinstance(node, Scalar) else None
        return self._refuse(path, _not(shape), node=node, allowed=allowed, hint=hint)

    def _model(
        self,
        model: type[BaseModel],
        node: Node,
        path: KeyPath,
        place: Place,
        variants: Mapping[str, type[BaseModel]],
    ) -> object:
        if isinstance(node, Broken):
            return FAILED
        if not isinstance(node, Table):
            hint = "remove the key, or write {}" if isinstance(node, Scalar) and not node.text else None
            allowed = f"mapping with {', '.join(model.model_fields)}"
            return self._refuse(path, "not a mapping", node=node, allowed=allowed, hint=hint)
        shapes = shapes_of_fields(model)
        values: dict[str, object] = {}
        for key, entry in node.entries.items():
            if key not in shapes:
                self._unknown(model, key, path, place, variants)
                continue
            allowed = described_field(model.model_fields[key])
            values[key] = self._value(shapes[key], entry.node, (*path, key), place.below(key), allowed)
        return self._built(model, values, path)

    def _built(self, model: type[BaseModel], values: Mapping[str, object], path: KeyPath) -> object:
        """The model of these values; reports what pydantic and its own checks have against them."""
        try:
            instance = model.model_validate(values)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                if not _concerns_failed(detail, values):
                    self._constraint(model, detail, path)
            return FAILED
        if any(value is FAILED for value in values.values()):
            return FAILED
        if isinstance(instance, Section):
            for found in instance.findings():
                self.problems.append(
                    self._document.problem(
                        (*path, *found.path),
                        found.message,
                        got=found.got,
                        allowed=found.allowed,
                        hint=found.hint,
                    )
                )
        return instance

    def _union(self, shape: UnionShape, node: Node, path: KeyPath, place: Place, allowed: str) -> object:
        if isinstance(node, Scalar):
            return self._scalar_of_union(shape, node, path, place, allowed)
        members: list[Shape]
        if isinstance(node, Items):
            members = [member for member in shape.members if isinstance(member, ListShape | AnyShape)]
        elif shape.tag is not None and isinstance(node, Table):
            return self._variant(shape, shape.tag, node, path, place)
        else:
            members = [m for m in shape.members if isinstance(m, ModelShape | TableShape | AnyShape)]
        if not members:
            return self._refuse(path, _not(shape), node=node, allowed=allowed)
        return self._best(members, node, path, place, allowed)

    def _best(
        self, members: Sequence[Shape], node: Node, path: KeyPath, place: Place, allowed: str
    ) -> object:
        """The first member that reads without a problem; if none does, the one with the fewest."""
        before = self.problems
        outcomes: list[tuple[list[Problem], object]] = []
        for member in members:
            self.problems = []
            value = self._value(member, node, path, place, allowed)
            outcomes.append((self.problems, value))
        problems, value = min(outcomes, key=lambda outcome: len(outcome[0]))
        self.problems = before + problems
        return value

    def _variant(self, shape: UnionShape, tag: str, node: Table, path: KeyPath, place: Place) -> object:
        """The model that the tag names."""
        names = listed(shape.variants)
        if tag not in node.entries:
            default = next(
                (name for name, model in shape.variants.items() if model.model_fields[tag].default == name),
                None,
            )
            if default is None:
                return self._refuse((*path, tag), "required key is missing", allowed=names)
            return self._model(
                shape.variants[default], node, path, place.choosing(tag, default), shape.variants
            )
        chosen = node.entries[tag].node
        if isinstance(chosen, Broken):
            return FAILED
        if not isinstance(chosen, Scalar) or chosen.text not in shape.variants:
            near = (
                difflib.get_close_matches(chosen.text, shape.variants, n=1)
                if isinstance(chosen, Scalar)
                else []
            )
            hint = f"did you mean {near[0]}?" if near else None
            return self._refuse((*path, tag), f"unknown {tag}", node=chosen, allowed=names, hint=hint)
        name = chosen.text
        return self._model(shape.variants[name], node, path, place.choosing(tag, name), shape.variants)

    def _scalar_of_union(
        self, shape: UnionShape, node: Scalar, path: KeyPath, place: Place, allowed: str
    ) -> object:
        if shape.tag is not None and node.text in shape.variants:
            short = Table(entries={shape.tag: Entry(mark=node.mark, node=node)}, mark=node.mark)
            return self._variant(shape, shape.tag, short, path, place)
        scalars = [m for m in shape.members if isinstance(m, ScalarShape | NamesShape | AnyShape)]
        errors: list[UnreadableValue] = []
        for member in sorted(scalars, key=_specificity):
            try:
                return untyped(node) if isinstance(member, AnyShape) else value_of(member, node)
            except UnreadableValue as error:
                errors.append(error)
        told = [error for error in errors if not error.about_null]
        others = [m for m in shape.members if not isinstance(m, ScalarShape)]
        single = told[0] if len(told) == 1 and not others else None
        message = single.message if single else _not(shape)
        hint = single.hint if single else next((error.hint for error in told if error.hint), None)
        return self._refuse(path, message, node=node, allowed=allowed, hint=hint)

    def _table(self, shape: TableShape, node: Table, path: KeyPath, place: Place) -> object:
        allowed = described(shape.value)
        values = {
            key: self._value(shape.value, entry.node, (*path, key), place.below(ANY), allowed)
            for key, entry in node.entries.items()
        }
        return FAILED if any(value is FAILED for value in values.values()) else values

    def _list(self, shape: ListShape, node: Items, path: KeyPath, place: Place) -> object:
        if shape.fixed is not None and len(shape.fixed) != len(node.nodes):
            got = f"{len(node.nodes)} item{'' if len(node.nodes) == 1 else 's'}"
            return self._refuse(path, "a list of another length", got=got, allowed=described(shape))
        values = [
            self._value(item, child, (*path, index), place.below(ANY), described(item))
            for index, child in enumerate(node.nodes)
            for item in [shape.fixed[index] if shape.fixed is not None else shape.item]
        ]
        return FAILED if any(value is FAILED for value in values) else shape.build(values)

    def _unknown(
        self,
        model: type[BaseModel],
        key: str,
        path: KeyPath,
        place: Place,
        variants: Mapping[str, type[BaseModel]],
    ) -> None:
        hint = explain_unknown(self._schema, model, place, key, variants)
        self._refuse((*path, key), "unknown key", allowed=", ".join(model.model_fields), hint=hint)

    def _constraint(self, model: type[BaseModel], detail: ErrorDetails, path: KeyPath) -> None:
        """A complaint of pydantic's, in our words."""
        if detail["type"] == "default_factory_not_called":
            return  # A consequence of another complaint, which is told by itself.
        location = tuple(detail["loc"])
        info = model.model_fields.get(str(location[0])) if location else None
        allowed = described_field(info) if info is not None else None
        if detail["type"] == "missing":
            self._refuse((*path, *location), "required key is missing", allowed=allowed)
            return
        if detail["type"] == "too_short":
            message = f"has fewer than {detail['ctx']['min_length']} items"
        else:
            message = (
                detail["msg"].removeprefix("Value error, ").replace("Input should", "must").replace("'", "")
            )
            message = message[:1].lower() + message[1:]
        place = (*path, *(word for word in location if isinstance(word, str | int)))
        self._refuse(place, message, node=self._node(place), allowed=allowed if len(location) == 1 else None)

    def _node(self, path: KeyPath) -> Node | None:
        node: Node = self._document.root
        for word in path:
            step = step_into(node, word)
            if step is None:
                return None
            node = step[1]
        return node

    def _refuse(
        self,
        path: KeyPath,
        message: str,
        *,
        node: Node | None = None,
        got: str | None = None,
        allowed: str | None = None,
        hint: str | None = None,
    ) -> Failed:
        if node is not None:
            got = shown(node, path)
            # Hints repeat the value.
            hint = None if any(is_credential(str(key)) for key in path) else hint
        self.problems.append(self._document.problem(path, message, got=got, allowed=allowed, hint=hint))
        return FAILED


def _not(shape: Shape) -> str:
    """What a value of another kind is not."""
    if isinstance(shape, ScalarShape):
        return NOT[shape.kind]
    if isinstance(shape, UnionShape):
        return "not a value of an allowed type"
    if isinstance(shape, ListShape):
        return "not a list"
    return "not an allowed name" if isinstance(shape, NamesShape) else "not a mapping"


def _specificity(shape: Shape) -> int:
    """Which member of a union is tried first: null, names, numbers, and text last."""
    if isinstance(shape, ScalarShape):
        return ("null", "", "bool", "int", "float", "path", "str").index(shape.kind)
    return 1 if isinstance(shape, NamesShape) else 9


def _has_broken(node: Node) -> bool:
    return isinstance(node, Broken) or any(_has_broken(child) for _, child in children(node))


def _concerns_failed(detail: ErrorDetails, values: Mapping[str, object]) -> bool:
    """Whether an error is about a value that is reported already."""
    return bool(detail["loc"]) and values.get(str(detail["loc"][0]), PydanticUndefined) is FAILED
