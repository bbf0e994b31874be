"""What a field of a schema accepts, taken from its annotation: the shapes that `reading.py` reads and
messages name.

Any pydantic model can be a schema. `model_fields` and `shape_of` turn annotations into a handful of shapes;
what has no shape here (an arbitrary class) is left to pydantic itself.
"""

import enum
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ScalarKind = Literal["bool", "int", "float", "str", "path", "null"]

_SCALARS: dict[object, ScalarKind] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    Path: "path",
    None: "null",
    type(None): "null",
}
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarShape:
    """One value of a plain type: ScalarShape(kind="float", bounds=(">= 0",))."""

    kind: ScalarKind
    bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesShape:
    """One of some values: NamesShape(names={"cpu": "cpu"}); text to the value it stands for."""

    names: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListShape:
    """A list of like items, or of as many as `fixed` has."""

    item: "Shape"
    fixed: tuple["Shape", ...] | None
    build: type


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """A mapping with any keys."""

    value: "Shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A mapping with the fields of a model as keys."""

    model: type[BaseModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionShape:
    """One of several shapes.

    Args:
        members: In the order of the annotation.
        tag: The field whose value says which model is meant (`source`, `pipeline`), if all models have one.
        variants: The model for each value of that field.
    """

    members: tuple["Shape", ...]
    tag: str | None
    variants: Mapping[str, type[BaseModel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyShape:
    """A value without a declared type."""

    annotation: object


Shape: TypeAlias = ScalarShape | NamesShape | ListShape | TableShape | ModelShape | UnionShape | AnyShape


@cache
def shapes_of_fields(model: type[BaseModel]) -> Mapping[str, Shape]:
    """The shape of each field of a model."""
    return {name: shape_of(info.annotation) for name, info in model.model_fields.items()}


def shape_of(annotation: object) -> Shape:
    """The shape of an annotation."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _bounded(shape_of(arguments[0]), arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return _union([shape_of(argument) for argument in arguments])
    if origin is Literal:
        return NamesShape(names={str(value): value for value in arguments})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return NamesShape(names={str(member.value): member for member in annotation})
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ModelShape(model=annotation)
    if annotation is None or (isinstance(annotation, type) and annotation in _SCALARS):
        return ScalarShape(kind=_SCALARS[annotation])
    return _container(annotation, origin, arguments)


def described(shape: Shape, metadata: Sequence[object] = ()) -> str:
    """What a shape accepts, in words: `float >= 0`, `cpu or cuda`, `list of str`, `mapping or null`."""
    if isinstance(shape, ScalarShape):
        bounds = " and ".join([*shape.bounds, *_bounds(metadata)])
        return f"{shape.kind} {bounds}" if bounds else shape.kind
    if isinstance(shape, NamesShape):
        return listed(shape.names)
    if isinstance(shape, ListShape):
        if shape.fixed is not None:
            return f"list of {len(shape.fixed)}: {', '.join(described(item) for item in shape.fixed)}"
        return f"list of {described(shape.item)}"
    if isinstance(shape, UnionShape):
        parts = [
            described(member, metadata) for member in shape.members if not isinstance(member, ModelShape)
        ]
        models = [member for member in shape.members if isinstance(member, ModelShape)]
        if shape.tag is not None:
            parts.insert(0, f"mapping with {shape.tag} {listed(shape.variants)}")
        elif models:
            parts.insert(0, "mapping")
        return " or ".join(parts)
    return "any value" if isinstance(shape, AnyShape) else "mapping"


def described_field(info: FieldInfo) -> str:
    """What a field accepts, with its bounds."""
    return described(shape_of(info.annotation), info.metadata)


def listed(names: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def tags_of(model: type[BaseModel], field: str) -> tuple[str, ...]:
    """The values of a field that is a `Literal`; empty for any other field."""
    shape = shapes_of_fields(model).get(field)
    return tuple(shape.names) if isinstance(shape, NamesShape) else ()


def _union(nested: list[Shape]) -> UnionShape:
    members: list[Shape] = []
    for member in nested:
        members.extend(member.members if isinstance(member, UnionShape) else [member])
    models = [member.model for member in members if isinstance(member, ModelShape)]
    tag = _tag(models)
    variants = {name: model for model in models for name in tags_of(model, tag)} if tag is not None else {}
    return UnionShape(members=tuple(members), tag=tag, variants=variants)


def _tag(models: list[type[BaseModel]]) -> str | None:
    """The field that tells models apart: a `Literal` in all of them, without a value in common."""
    if len(models) < 2:
        return None
    for field in models[0].model_fields:
        tags = [tags_of(model, field) for model in models]
        names = [name for group in tags for name in group]
        if all(tags) and len(names) == len(set(names)):
            return field
    return None


def _container(annotation: object, origin: Any, arguments: tuple[Any, ...]) -> Shape:
    kind = origin if origin is not None else annotation
    if not isinstance(kind, type) or issubclass(kind, str | bytes):
        return AnyShape(annotation=annotation)
    if issubclass(kind, Mapping):
        return TableShape(value=shape_of(arguments[1]) if len(arguments) == 2 else AnyShape(annotation=Any))
    if not issubclass(kind, Sequence | frozenset | set):
        return AnyShape(annotation=annotation)
    build = kind if kind in (list, set, frozenset) else tuple
    if issubclass(kind, tuple) and arguments and arguments[-1] is not Ellipsis:
        fixed = tuple(shape_of(argument) for argument in arguments)
        return ListShape(item=fixed[0], fixed=fixed, build=tuple)
    item = shape_of(arguments[0]) if arguments else AnyShape(annotation=Any)
    return ListShape(item=item, fixed=None, build=build)


def _bounded(shape: Shape, metadata: Sequence[object]) -> Shape:
    """A shape inside of an annotation with the bounds that are written there."""
    inner = [
        constraint
        for item in metadata
        for constraint in (item.metadata if isinstance(item, FieldInfo) else [item])
    ]
    return replace(shape, bounds=tuple(_bounds(inner))) if isinstance(shape, ScalarShape) else shape


def _bounds(metadata: Sequence[object]) -> list[str]:
    """Ranges of a number, from the constraints that pydantic keeps in a field's metadata."""
    return [
        f"{sign} {getattr(constraint, name)}"
        for constraint in metadata
        for name, sign in _BOUNDS
        if getattr(constraint, name, None) is not None
    ]
