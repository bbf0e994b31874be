"""A configuration as YAML text, credentials masked: what a run writes into its directory.

Loading the text gives an equal configuration, but for what was masked.
"""

from collections.abc import Mapping
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
    return dump_data(config.model_dump(), secrets=secrets)


def dump_data(data: Mapping[str, object], *, secrets: frozenset[str] = frozenset()) -> str:
    """The YAML text of nested mappings, sequences and scalars, with credentials masked."""
    plain = _plain(data)
    masked = masked_data(plain, secrets=secrets | credentials_in(plain))
    text: str = yaml.dump(
        masked, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=WIDTH
    )
    return text


def _plain(data: object) -> object:
    """Mappings as dict, sequences as list, paths as text; text that looks like a reference escaped."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return str(data).replace("${", "$${") if isinstance(data, str | PurePath) else data
