"""A YAML file, a command line's values and the environment to a checked configuration.

The command line of `roll-launch` calls `load_config`; everything that is wrong is said at once. The steps:
text with places (`document.py`), values of the command line (`overrides.py`), `${references}`
(`references.py`), the schema (`reading.py`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar, overload

from pydantic import BaseModel

from roll_launch.config.document import Document, parse_document, read_document, refuse_monsters
from roll_launch.config.overrides import apply_overrides
from roll_launch.config.problems import ConfigError, in_file_order, without_secrets
from roll_launch.config.reading import Reading
from roll_launch.config.references import resolve_references
from roll_launch.config.schema.run import RunConfig

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig(Generic[Schema]):
    """A configuration together with where each value was written.

    LoadedConfig(config=RunConfig(name="quickstart", ...),
    document=Document(source="examples/quickstart.yaml", ...)).
    """

    config: Schema
    document: Document


@overload
def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> LoadedConfig[RunConfig]: ...


@overload
def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    schema: type[Schema] = ...,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[Schema]: ...


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    schema: type[BaseModel] = RunConfig,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[RunConfig] | LoadedConfig[Schema]:
    """The configuration in a YAML file.

    Args:
        path: The file; `~` stands for the home directory.
        overrides: Words of the command line: `a.b=value`, `+a.b=value`, `--a.b=value`, `--a.b value`.
        schema: Any pydantic model.
        environment: For `${env:NAME}`; that of this process by default.

    Raises:
        ConfigError: All that is wrong with the file and the overrides.
    """
    document = read_document(Path(path).expanduser())
    return _loaded(document, schema, overrides, environment)  # type: ignore[return-value]  # narrowed by the overloads


def load_text(
    text: str,
    schema: type[Schema],
    overrides: Sequence[str] = (),
    source: str = "configuration",
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[Schema]:
    """The configuration in YAML text; otherwise as `load_config`.

    Args:
        text: YAML.
        schema: Any pydantic model.
        overrides: Words of the command line.
        source: What messages call the text.
        environment: For `${env:NAME}`.
    """
    return _loaded(parse_document(text, source=source), schema, overrides, environment)


def _loaded(
    document: Document, schema: type[Schema], overrides: Sequence[str], environment: Mapping[str, str] | None
) -> LoadedConfig[Schema]:
    document = apply_overrides(document, overrides)
    document = resolve_references(document, os.environ if environment is None else environment)
    refuse_monsters(document)
    reading = Reading(document, schema)
    config = reading.read()
    problems = [*document.problems, *reading.problems]
    if problems or config is None:
        shown = [without_secrets(problem, document.secrets) for problem in problems]
        raise ConfigError(in_file_order(shown, document.source))
    return LoadedConfig(config=config, document=replace(document, problems=()))
