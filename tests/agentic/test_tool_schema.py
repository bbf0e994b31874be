from collections.abc import Mapping, Sequence
from typing import Literal

import pytest
from roll_agentic import AgenticError
from roll_agentic.tools import argument_problem, function_schema, schema_problem


def search(
    query: str, most: int = 3, kind: Literal["web", "local"] = "web", tags: list[str] | None = None
) -> str:
    """Search the corpus
    for passages.

    Second paragraph.

    Args:
        query: Words to look for,
            in any order.
        most: How many.

    Returns:
        Something.
    """
    return query


def test_schema_is_read_from_signature_and_docstring() -> None:
    assert function_schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus for passages.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words to look for, in any order."},
                    "most": {"type": "integer", "description": "How many.", "default": 3},
                    "kind": {"type": "string", "enum": ["web", "local"], "default": "web"},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["query"],
            },
        },
    }
    assert schema_problem(function_schema(search)) == ""


def test_containers_have_schemas() -> None:
    def plot(points: Sequence[float], labels: Mapping[str, str], size: dict) -> None: ...

    properties = function_schema(plot)["function"]["parameters"]["properties"]  # type: ignore[index]
    assert properties["points"] == {"type": "array", "items": {"type": "number"}}
    assert properties["labels"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert properties["size"] == {"type": "object"}


def test_functions_without_a_schema_are_refused() -> None:
    def bare(query): ...

    def many(*queries: str): ...

    def odd(query: complex): ...

    with pytest.raises(AgenticError, match="'query' of tool 'bare' needs a type annotation"):
        function_schema(bare)
    with pytest.raises(AgenticError, match="named parameters only"):
        function_schema(many)
    with pytest.raises(AgenticError, match="complex"):
        function_schema(odd)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "a"}, ""),
        ({"query": "a", "most": 2, "kind": "local", "tags": None}, ""),
        ({}, "missing argument query"),
        ({"query": "a", "limit": 1}, "unknown argument limit; there are query, most, kind, tags"),
        ({"query": 5}, "argument query must be string, got 5"),
        ({"query": "a", "most": True}, "argument most must be integer, got True"),
        ({"query": "a", "kind": "deep"}, "argument kind must be ['web', 'local'], got 'deep'"),
        ({"query": "a", "tags": "x"}, "argument tags must be ['array', 'null'], got 'x'"),
    ],
)
def test_arguments_are_checked(arguments: dict, problem: str) -> None:
    assert argument_problem(function_schema(search), arguments) == problem


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "function", "function": {"name": "a b"}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}},
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": 1}}}},
        {"type": "function", "function": {"name": "f", "parameters": {"required": ["x"]}}},
    ],
)
def test_malformed_schemas_are_found(schema: dict) -> None:
    assert schema_problem(schema)
