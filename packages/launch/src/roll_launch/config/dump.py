"""A configuration as YAML text, credentials masked: what a run writes into its directory.

Loading the text gives an equal configuration, but for what was masked.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath

import yaml
from pydantic import BaseModel

from roll_launch.config.credentials import credentials_in, masked_data
from roll_launch.config.scalars import read_any

WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Quotes also what `scalars.py` would not read back as text, and PyYAML would."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, indentless=False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    ambiguous = not isinstance(read_any(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if ambiguous else None)


_Dumper.add_representer(str, _represent_text)


def dump_config(config: BaseModel, *, secrets: frozenset[str] = frozenset()) -> str:
    """The YAML text of a configuration, defaults included.

    Args:
        config: Of any schema.
        secrets: Texts to mask wherever they stand: `LoadedConfig.document.secrets`.
    """
    return _text(_plain(config), secrets)


def dump_data(data: Mapping[str, object], *, secrets: frozenset[str] = frozenset()) -> str:
    """The YAML text of nested mappings, sequences and scalars, with credentials masked."""
    return _text(_plain(data), secrets)


def masked_keys(config: BaseModel, *, secrets: frozenset[str] = frozenset()) -> list[str]:
    """Dotted keys of the values that `dump_config` masks, list items by their index."""
    plain = _plain(config)
    masked = masked_data(plain, secrets=secrets | credentials_in(plain))
    pairs = zip(leaves(plain), leaves(masked), strict=True)
    return [key for (key, value), (_, shown) in pairs if value != shown]


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of nested mappings and lists; a list of plain values is one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping | list) for inner in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path, value


def _text(plain: object, secrets: frozenset[str]) -> str:
    masked = masked_data(plain, secrets=secrets | credentials_in(plain))
    text: str = yaml.dump(
        masked, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=WIDTH
    )
    return text


def _plain(data: object) -> object:
    """Sections and mappings as dict, sequences as list, paths as text; `${` escaped."""
    if isinstance(data, BaseModel):
        return {name: _plain(getattr(data, name)) for name in _written(data)}
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [_plain(value) for value in data]
    if isinstance(data, Enum):
        return _plain(data.value)
    return str(data).replace("${", "$${") if isinstance(data, str | PurePath) else data


def _written(section: BaseModel) -> list[str]:
    """The fields that a section dumps, in the order of its class; required before inherited ones."""
    fields, dumped = type(section).model_fields, section.model_dump()
    names = [name for name in fields if name in dumped]
    inherits = any(name not in type(section).__annotations__ for name in fields)
    return sorted(names, key=lambda name: not fields[name].is_required()) if inherits else names
