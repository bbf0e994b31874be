"""The root class of the schema's models, and the findings of their own checks.

A section is one mapping of the configuration. Checks that pydantic's field constraints cannot express (a
name that another package must know, two keys that contradict each other) are in `Section.findings`, where
`reading.py` collects them with the key that each is about.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from roll_launch.config.nodes import KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A value that is wrong beside others: Finding(path=("rollout", "group_size"), message="...", got="1").

    Args:
        path: Below the section that found it.
        message: What is wrong.
        got: The value, or None where the message says it.
        allowed: What is accepted, or None.
        hint: What to write instead, or None.
    """

    path: KeyPath
    message: str
    got: str | None = None
    allowed: str | None = None
    hint: str | None = None


class Section(BaseModel):
    """One mapping of the configuration: immutable, no keys but its fields, no value converted silently."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    def findings(self) -> Iterator[Finding]:
        """What is wrong with values that are each of the right type and range."""
        return iter(())
