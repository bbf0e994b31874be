"""JSON schemas of tools: from typed Python functions, and checks of schemas and arguments.

The form is OpenAI's: `{"type": "function", "function": {"name", "description", "parameters"}}`.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from roll_agentic.errors import AgenticError

ToolSchema: TypeAlias = Mapping[str, object]

_PLAIN: Mapping[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def function_schema(function: Callable[..., object]) -> dict[str, object]:
    """The schema of a typed function.

    The first paragraph of its docstring describes it, the lines `name: ...` under `Args:` its
    parameters. Known types are `str`, `int`, `float`, `bool`, `None`, `list`, `dict`, `Literal`,
    unions and `X | None`; parameters without a default are required.

    Args:
        function: Takes keyword arguments; plain or `async`.

    Raises:
        AgenticError: A parameter has no annotation, a type that has no schema, or no name (`*args`).
    """
    name = getattr(function, "__name__", type(function).__name__)
    text = inspect.getdoc(function) or ""
    told = _parameter_texts(text)
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise AgenticError(f"the annotations of tool {name!r} cannot be read: {error}") from error
    properties: dict[str, object] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise AgenticError(f"tool {name!r} must take named parameters only, it has {parameter}")
        if parameter.name not in hints:
            raise AgenticError(f"parameter {parameter.name!r} of tool {name!r} needs a type annotation")
        schema = _type_schema(hints[parameter.name], f"parameter {parameter.name!r} of tool {name!r}")
        if parameter.name in told:
            schema["description"] = told[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is None or isinstance(
            parameter.default, str | int | float | bool | list | dict
        ):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": " ".join(text.split("\n\n")[0].split()),
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def schema_name(schema: ToolSchema) -> str:
    """The name of the tool.

    Raises:
        AgenticError: The schema is malformed; see `schema_problem`.
    """
    if problem := schema_problem(schema):
        raise AgenticError(f"this is no schema of a tool: {problem}")
    return str(typing.cast("Mapping[str, object]", schema["function"])["name"])


def schema_problem(schema: ToolSchema) -> str:
    """What is wrong with a tool's schema, in words; empty when nothing is."""
    function = schema.get("function")
    if schema.get("type") != "function" or not isinstance(function, Mapping):
        return "it needs type 'function' and an object 'function'"
    name, parameters = function.get("name"), function.get("parameters", {"type": "object"})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"its name must be letters, digits, '_', '-' or '.', at most 64; got {name!r}"
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        return f"the parameters of {name!r} must be a schema of type 'object'"
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(p, Mapping) for p in properties.values()):
        return f"the properties of {name!r} must map names to schemas"
    if not isinstance(required, Sequence) or not set(required) <= set(properties):
        return f"{name!r} requires {required}, its properties are {sorted(properties)}"
    return ""


def argument_problem(schema: ToolSchema, arguments: Mapping[str, object]) -> str:
    """What is wrong with the arguments of a call, for the model to read; empty when nothing is."""
    function = schema["function"]
    parameters: Any = function.get("parameters", {}) if isinstance(function, Mapping) else {}
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if missing := [name for name in required if name not in arguments]:
        return f"missing argument {', '.join(missing)}"
    unknown = [name for name in arguments if name not in properties]
    if unknown and not parameters.get("additionalProperties"):
        return f"unknown argument {', '.join(unknown)}; there are {', '.join(properties) or 'none'}"
    for name, value in arguments.items():
        wanted = properties.get(name, {})
        if not _fits(value, wanted):
            kind = wanted.get("enum") or wanted.get("type") or [s.get("type") for s in wanted["anyOf"]]
            return f"argument {name} must be {kind}, got {value!r:.80}"
    return ""


def _fits(value: object, schema: Any) -> bool:
    """Whether a value has a schema's type and is in its enumeration; other keywords are not checked."""
    if not isinstance(schema, Mapping):
        return True
    if "anyOf" in schema:
        return any(_fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema.get("type")
    if kinds is None:
        return True
    return any(_has_type(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _has_type(value: object, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
    return True


def _type_schema(hint: object, where: str) -> dict[str, object]:
    """The schema of an annotation.

    Raises:
        AgenticError: It has none.
    """
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": _PLAIN.get(type(arguments[0]), "string"), "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(option, where) for option in arguments]}
    if origin in (list, tuple, Sequence) or origin is typing.get_origin(typing.Sequence[int]):
        return {"type": "array", "items": _type_schema(arguments[0], where)}
    if origin in (dict, Mapping) or origin is typing.get_origin(typing.Mapping[str, int]):
        return {"type": "object", "additionalProperties": _type_schema(arguments[1], where)}
    raise AgenticError(
        f"{where} has the type {hint!r}; types with a schema are str, int, float, bool, None, list, dict, "
        "Literal and unions of them"
    )


def _parameter_texts(text: str) -> dict[str, str]:
    """Descriptions in the `Args:` part of a docstring."""
    _, found, rest = text.partition("Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in rest.splitlines() if found else []:
        if line and not line.startswith(" "):
            break
        if match := re.fullmatch(r"    (\w+)(?: \(.*?\))?: (.*)", line):
            name = match[1]
            texts[name] = match[2]
        elif name and line.strip():
            texts[name] += " " + line.strip()
    return texts
