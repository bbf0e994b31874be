"""Where each key of a schema lives: turns an unknown key into the key that was probably meant.

Used by `reading.py`. Looks at the same mapping first, then at the variants that were not chosen (options of
another back-end), then anywhere else in the schema.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from roll_launch.config.annotations import (
    ListShape,
    ModelShape,
    Shape,
    TableShape,
    UnionShape,
    shapes_of_fields,
)

ANY = "*"
"""Stands for the index of a list item, or for a key of a free mapping."""

ELSEWHERE_CUTOFF = 0.8
"""How alike (difflib's ratio) a misspelt key must be to one far away; near by, difflib's own 0.6 does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A variant taken on the way down: Choice(depth=2, tag="pipeline", name="sft"), below two keys."""

    depth: int
    tag: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in the schema.

    Place(keys=("stages", "*", "rollout", "group_size"), choices=(Choice(depth=2, tag="pipeline",
    name="rlvr"),)).
    """

    keys: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    def below(self, key: str) -> "Place":
        """The place of a key of the mapping here."""
        return Place(keys=(*self.keys, key), choices=self.choices)

    def choosing(self, tag: str, name: str) -> "Place":
        """The same place once a variant is taken."""
        return Place(
            keys=self.keys, choices=(*self.choices, Choice(depth=len(self.keys), tag=tag, name=name))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A key of the schema under one of its names: its own, or one that other frameworks give it."""

    name: str
    place: Place


def other_names(info: FieldInfo) -> tuple[str, ...]:
    """What other frameworks call a field, from `json_schema_extra={"also": [...]}`."""
    extra = info.json_schema_extra
    names = extra.get("also", ()) if isinstance(extra, dict) else ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


@lru_cache(maxsize=8)
def known_keys(schema: type[BaseModel]) -> tuple[Known, ...]:
    """Every key of a schema, under all of its names."""
    return tuple(_walk(ModelShape(model=schema), Place(), ()))


def explain_unknown(
    schema: type[BaseModel],
    model: type[BaseModel],
    here: Place,
    key: str,
    variants: Mapping[str, type[BaseModel]],
) -> str | None:
    """A hint for a key that `model` does not have, such as "did you mean learning_rate?".

    Args:
        schema: Of the whole document.
        model: Of the mapping that has the key.
        here: Where that mapping is.
        key: As it was written.
        variants: Those that could have been chosen here, by name; empty where there was no choice.
    """
    chosen = next((choice for choice in reversed(here.choices) if choice.depth == len(here.keys)), None)
    if chosen is not None and (owners := _owners(key, variants, chosen.name)):
        return f"{key} belongs to {chosen.tag} {' or '.join(owners)}; chosen is {chosen.name}"
    local = {alias: name for name, info in model.model_fields.items() for alias in (name, *other_names(info))}
    same = {_normal(alias): name for alias, name in local.items()}.get(_normal(key))
    if same is not None:
        return f"did you mean {same}?"
    if (elsewhere := _elsewhere(schema, here, key)) is not None:
        return elsewhere
    near = difflib.get_close_matches(_normal(key), [_normal(alias) for alias in local], n=1)
    if near:
        return f"did you mean {next(name for alias, name in local.items() if _normal(alias) == near[0])}?"
    names = {_normal(known.name) for known in known_keys(schema)}
    far = difflib.get_close_matches(_normal(key), names, n=1, cutoff=ELSEWHERE_CUTOFF)
    return _elsewhere(schema, here, far[0], misspelt=True) if far else None


def _owners(key: str, variants: Mapping[str, type[BaseModel]], chosen: str) -> list[str]:
    """The variants that were not chosen and have the key, or are called by it."""
    if _normal(key) in map(_normal, variants) and key != chosen:
        return [name for name in variants if _normal(name) == _normal(key)]
    return [name for name, model in variants.items() if key in model.model_fields and name != chosen]


def _elsewhere(schema: type[BaseModel], here: Place, key: str, *, misspelt: bool = False) -> str | None:
    """Where else in the schema the key is, nearest places first."""
    candidates = [known for known in known_keys(schema) if _normal(known.name) == _normal(key)]
    if not candidates:
        return None
    scored = [(_distance(here, known.place), known) for known in candidates]
    best = min(score for score, _ in scored)
    nearest = [known for score, known in scored if score == best]
    known = nearest[0]
    name = known.place.keys[-1]
    parents = dict.fromkeys(_relative(here, candidate.place.keys[:-1]) for candidate in nearest)
    conflict = _conflict(here, known.place)
    if conflict is not None:
        wanted, chosen = conflict
        inside = "" if known.place.keys[:-1] == here.keys else f"{next(iter(parents))} of "
        return f"{name} belongs to {inside}{wanted.tag} {wanted.name}; chosen is {chosen.name}"
    if key == name and not misspelt:
        return f"{name} belongs to {' or '.join(list(parents)[:3])}"
    return f"did you mean {_relative(here, known.place.keys)}?"


def _distance(here: Place, place: Place) -> tuple[bool, int, int]:
    """First keys that go with the choices made, then those that share most of the way, then short ways."""
    shared = _shared(here.keys, place.keys)
    return (_conflict(here, place) is not None, -shared, len(place.keys))


def _conflict(here: Place, place: Place) -> tuple[Choice, Choice] | None:
    """The choice that `place` needs and the other one that was made `here`."""
    shared = _shared(here.keys, place.keys)
    for wanted in place.choices:
        for made in here.choices:
            if wanted.depth == made.depth <= shared and wanted.name != made.name:
                return wanted, made
    return None


def _shared(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """How many keys both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _relative(here: Place, keys: tuple[str, ...]) -> str:
    """`keys` as seen from the mapping `here`; in full where they are not below it."""
    below = keys[len(here.keys) :] if keys[: len(here.keys)] == here.keys else keys
    return ".".join(below) or "the top level"


def _walk(shape: Shape, place: Place, above: tuple[type[BaseModel], ...]) -> Iterator[Known]:
    if isinstance(shape, ModelShape) and shape.model not in above:
        for name, field in shapes_of_fields(shape.model).items():
            for alias in (name, *other_names(shape.model.model_fields[name])):
                yield Known(name=alias, place=place.below(name))
            yield from _walk(field, place.below(name), (*above, shape.model))
    elif isinstance(shape, ListShape):
        yield from _walk(shape.item, place.below(ANY), above)
    elif isinstance(shape, TableShape):
        yield from _walk(shape.value, place.below(ANY), above)
    elif isinstance(shape, UnionShape):
        names = {model: name for name, model in shape.variants.items()}
        for member in shape.members:
            inside = place
            if isinstance(member, ModelShape) and shape.tag is not None:
                inside = place.choosing(shape.tag, names[member.model])
            yield from _walk(member, inside, above)


def _normal(key: str) -> str:
    return key.lower().replace("-", "_").replace(" ", "_")
