"""docs/configuration.md, written from the schema: `python -m roll_launch.config.reference >
docs/configuration.md`.

A test says when the file is out of date.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from roll_launch.config.annotations import (
    ListShape,
    ModelShape,
    Shape,
    UnionShape,
    described_field,
    shape_of,
    tags_of,
)
from roll_launch.config.outline import other_names
from roll_launch.config.schema.run import RunConfig

INTRODUCTION = """\
# Configuration

One YAML file describes a run. It is checked as a whole before anything starts, and everything that is wrong
is said at once, with line, key and what is allowed.

    roll-launch check examples/quickstart.yaml
    roll-launch run examples/quickstart.yaml stages.rlvr.steps=5

**Values.** What a value means is decided by the key that holds it. `1e-6` is a number where a float is
expected, `off` is text where text is expected, and only `true` and `false` are booleans. Nothing is
converted: `"8"` is no number, and text that looks like a number must be in quotes. A key that does not
exist is an error, and so is one that is given twice. A mapping whose first key chooses a variant (`source`,
`pipeline`, `kind`) may be written as that word alone when the variant needs no other key: `runtime: ray`.

**Paths** are relative to the working directory; `~` is the home directory. What a preparation writes need
not be there before it ran.

**Command line.** `a.b.c=value`, `+a.b.c=value`, `--a.b.c=value` and `--a.b.c value` set one value. A list
item is named by its index or its name: `stages.0.steps=5`, `stages.rlvr.steps=5`. The value is written as
in the file (`stages.rlvr.learner.optimizer.betas=[0.9,0.95]`); mappings and lists replace what was there,
and an empty value is null. The last of two for one key wins.

**References.** A value `${a.b.c}` is the value of that key, from the top, whatever its type; within text it
is written into the text: `path: ${directory}/data.jsonl`. Only keys that the file or the command line sets
can be named. `${env:NAME}` and `${env:NAME,default}` take a variable of the environment. A literal `${` is
written `$${`. Inside of `{ }` and `[ ]` references need quotes.

**Credentials.** Values of keys such as `api_key`, `token` or `password`, and of environment variables so
called, are shown as `***` in messages and in the configuration that is saved with a run.
"""


def configuration_markdown(schema: type[BaseModel] = RunConfig) -> str:
    """The reference of a schema as Markdown: a table for each section, in the order of their first use."""
    parts = [INTRODUCTION]
    for heading, model in _sections(schema):
        parts.append(f"## {heading}\n\n{_first_paragraph(model)}\n\n{_table(model)}")
    return "\n".join(parts)


def _sections(schema: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model once, headed by the dotted key where it is first used and the variants that lead to it."""
    seen: set[type[BaseModel]] = set()
    waiting = [_Section(key="", variants=(), model=schema)]
    while waiting:
        section = waiting.pop(0)
        if section.model in seen:
            continue
        seen.add(section.model)
        yield section.heading, section.model
        below = [
            found
            for name, info in section.model.model_fields.items()
            for found in _models(
                shape_of(info.annotation), f"{section.key}.{name}".lstrip("."), section.variants
            )
        ]
        waiting = below + waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """_Section(key="stages[].learner", variants=("pipeline rlvr",), model=PolicyLearnerConfig)."""

    key: str
    variants: tuple[str, ...]
    model: type[BaseModel]

    @property
    def heading(self) -> str:
        variants = f" ({', '.join(self.variants)})" if self.variants else ""
        return f"`{self.key}`{variants}" if self.key else "The file"


def _models(shape: Shape, key: str, variants: tuple[str, ...]) -> Iterator[_Section]:
    if isinstance(shape, ModelShape):
        yield _Section(key=key, variants=variants, model=shape.model)
    elif isinstance(shape, ListShape):
        yield from _models(shape.item, f"{key}[]", variants)
    elif isinstance(shape, UnionShape):
        for member in shape.members:
            taken = variants
            if isinstance(member, ModelShape) and shape.tag is not None:
                taken = (*variants, f"{shape.tag} {' or '.join(tags_of(member.model, shape.tag))}")
            yield from _models(member, key, taken)


def _table(model: type[BaseModel]) -> str:
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for name, info in sorted(model.model_fields.items(), key=lambda item: not item[1].is_required()):
        also = (
            f" Elsewhere: {', '.join(f'`{other}`' for other in other_names(info))}."
            if other_names(info)
            else ""
        )
        cells = (f"`{name}`", described_field(info), _default(info), f"{info.description or ''}{also}")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default
    if value is PydanticUndefined:
        return "`{}`" if info.default_factory is dict else "see right"
    if value is None:
        return "null" if "null" in described_field(info) else "unset"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.write(configuration_markdown())
