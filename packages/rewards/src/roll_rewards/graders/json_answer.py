"""Grader `json`: the response is valid JSON, fits a schema, or equals the reference (extra `schema`)."""

import functools
import importlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.scores import Score, failed

_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)```", re.DOTALL)
_MAX_CHARS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonAnswer:
    """1 if the response's JSON passes, else 0; text that is no JSON is unparsed.

    Parts: `valid` (it is JSON), `schema` (it fits, where there is a schema) and `equal` (where asked for).
    NaN, Infinity and objects that name a key twice are no JSON here.

    Example: `JsonAnswer(schema={"type": "object", "required": ["name"]}, find="fence")`.

    Attributes:
        schema: JSON Schema, checked with jsonschema; None takes the column `schema`, if the row has one.
        equal: Whether the value must be the reference (JSON text, or the value itself) as well.
        find: Where the JSON is: `whole` response, the last `fence` (three backticks; without a fence the
            whole), or `any`, which also takes what stands between the first and last brace.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: jsonschema is not installed, or the schema is none.
    """

    schema: Mapping[str, object] | None = None
    equal: bool = False
    find: Literal["whole", "fence", "any"] = "fence"
    thinking: Thinking = "strip"

    def __post_init__(self) -> None:
        if self.schema is not None:
            _validator(json.dumps(self.schema, sort_keys=True))

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the JSON text. See `Grader.grade`."""
        text = json_text(visible_part(response, thinking=self.thinking), self.find)
        try:
            if len(text) > _MAX_CHARS:
                raise ValueError(f"{len(text)} characters")
            value = _loads(text)
        except (ValueError, RecursionError):
            return Score(value=0.0, parts={"valid": 0.0})
        parts = {"valid": 1.0}
        schema = self.schema if self.schema is not None else _column_schema(columns.get("schema"))
        if schema is not None:
            parts["schema"] = float(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))
        if self.equal:
            try:
                wanted = _loads(reference) if isinstance(reference, str) else reference
            except ValueError:
                return failed("reference", f"grader 'json' cannot read the reference {reference!r:.80}")
            parts["equal"] = float(_same(value, wanted))
        return Score(value=min(parts.values()), parts=parts, parsed=text[:500])


def json_text(text: str, find: str) -> str:
    """Where the JSON of a text is; see `JsonAnswer.find`."""
    fences = _FENCE.findall(text) if find != "whole" else []
    if fences:
        return str(fences[-1]).strip()
    if find == "any":
        starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
        end = max(text.rfind("}"), text.rfind("]"))
        if starts and end > min(starts):
            return text[min(starts) : end + 1]
    return text.strip()


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_twins)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _same(value: object, wanted: object) -> bool:
    """Equality in which true is not 1, and numbers of either kind are compared by value."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_same(value[key], wanted[key]) for key in value)
    if isinstance(value, list) and isinstance(wanted, list | tuple):
        return len(value) == len(wanted) and all(map(_same, value, wanted))
    if isinstance(value, float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted, rel_tol=1e-12)
    return type(value) is type(wanted) and value == wanted if isinstance(value, str) else value == wanted


def _column_schema(column: object) -> Mapping[str, object] | None:
    """The row's schema, also as JSON text.

    Raises:
        RewardError: It is neither.
    """
    if isinstance(column, str):
        try:
            column = json.loads(column)
        except ValueError as error:
            raise RewardError(f"column 'schema' is no JSON: {error}") from error
    if column is not None and not isinstance(column, Mapping):
        raise RewardError(
            f"column 'schema' must be a JSON Schema, got {type(column).__name__} {column!r:.80}"
        )
    return column


@functools.lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    """A checker of a schema given as JSON text.

    Raises:
        RewardError: jsonschema is not installed, or the schema is none.
    """
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as error:
        raise RewardError(
            f"a schema of grader 'json' needs jsonschema: pip install 'roll-rewards[schema]' ({error})"
        ) from error
    parsed = json.loads(schema)
    kind = jsonschema.validators.validator_for(parsed)
    try:
        kind.check_schema(parsed)
    except jsonschema.SchemaError as error:
        raise RewardError(f"the schema of grader 'json' is no JSON Schema: {error.message}") from error
    return kind(parsed)
