"""Tests of a program, read from the forms that data sets have. Called by the `code` grader."""

import ast
import builtins
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from roll_rewards.errors import RewardError

Mode = Literal["stdin", "function", "asserts", "pytest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test.

    Example: `Case(stdin="2 3\\n", stdout="5\\n")`.

    Attributes:
        stdin: Standard input (mode `stdin`).
        stdout: Expected standard output (mode `stdin`).
        args: Positional arguments (mode `function`).
        kwargs: Arguments by name (mode `function`).
        result: Expected return value (mode `function`).
        code: Test code (modes `asserts` and `pytest`).
    """

    stdin: str = ""
    stdout: str = ""
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    result: object = None
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All tests of one exercise.

    Attributes:
        mode: How they test.
        cases: The tests; may be empty.
        entry: Function that mode `function` calls.
    """

    mode: Mode
    cases: tuple[Case, ...]
    entry: str = ""


def read_suite(reference: object, columns: Mapping[str, object]) -> Suite:
    """The tests in a reference.

    Accepted, also as JSON text: a list of tests, or a mapping with `tests` beside `mode` and `entry`. A
    test is `{"stdin"|"input", "stdout"|"output"}`, `{"args", "kwargs"?, "result"}` or a text with
    assertions. Also `{"inputs": [...], "outputs": [...], "fn_name"?}` (APPS, TACO), `{"test": ...,
    "entry_point": ...}` (HumanEval), and the text of a pytest file. Columns `mode` and `entry` come
    before what the reference says.

    Args:
        reference: See above.
        columns: The row's other columns.

    Raises:
        RewardError: The reference has no such form, or the entry is missing.
    """
    data = _parsed(reference)
    whole: Mapping[str, object] = data if isinstance(data, Mapping) else {}
    entry = _first(columns, whole, ("entry", "fn_name", "entry_point", "function"))
    mode = _first(columns, whole, ("mode",))
    mode = _MODES_CALLED.get(mode, mode)
    if isinstance(whole.get("test"), str) and entry and mode in ("", "asserts"):
        code = f"{whole['test']}\n\ncheck({entry})\n"
        return Suite(mode="asserts", cases=(Case(code=code),), entry=entry)
    if isinstance(data, str):
        if mode in ("", "pytest") and "def test" in data:
            return Suite(mode="pytest", cases=(Case(code=data),))
        tests: Sequence[object] = [data]
    else:
        tests = _listed(data, whole)
    mode = mode or _guessed(tests, entry)
    if mode not in ("stdin", "function", "asserts", "pytest"):
        raise RewardError(
            f"mode of grader 'code' must be stdin, function, asserts or pytest, got {mode!r:.80}"
        )
    if mode == "function" and not entry:
        raise RewardError("grader 'code' needs the name of the function to call, in 'entry'")
    return Suite(mode=mode, cases=tuple(_case(test, mode) for test in tests), entry=entry)  # type: ignore[arg-type]


def names_classes(code: str) -> bool:
    """Whether test code uses a class of the program: a capitalised name that it does not define itself.

    Args:
        code: Python source; what does not parse uses none.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in PROGRAM_NAMES:
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            used.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in PROGRAM_NAMES
        ):
            used.add(node.attr)
    others = defined | imported | set(dir(builtins))
    return any(name[:1].isupper() and name not in others for name in used)


_MODES_CALLED = {"input": "stdin", "stdio": "stdin", "call": "function", "assert": "asserts"}

PROGRAM_NAMES = ("solution", "main", "program")
"""Names under which tests may import the program."""


def _parsed(reference: object) -> object:
    if isinstance(reference, str) and reference.lstrip()[:1] in ("[", "{"):
        try:
            parsed: object = json.loads(reference)
        except (ValueError, RecursionError):
            return reference
        return parsed
    return reference


def _first(columns: Mapping[str, object], whole: Mapping[str, object], names: Sequence[str]) -> str:
    for source in (columns, whole):
        for name in names:
            value = source.get(name)
            if isinstance(value, str) and value:
                return value
    return ""


def _listed(data: object, whole: Mapping[str, object]) -> Sequence[object]:
    if isinstance(data, list | tuple):
        return data
    if isinstance(whole.get("tests"), list | tuple):
        return whole["tests"]  # type: ignore[return-value]
    if isinstance(whole.get("tests"), str):
        return [whole["tests"]]
    inputs, outputs = whole.get("inputs"), whole.get("outputs")
    if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
        return [{"input": a, "output": b} for a, b in zip(inputs, outputs, strict=True)]
    raise RewardError(
        "grader 'code' needs tests: a list, a mapping with 'tests' or with 'inputs' and 'outputs' of one "
        f"length, or test code; got {type(data).__name__} {data!r:.80}"
    )


def _guessed(tests: Sequence[object], entry: str) -> str:
    if all(isinstance(test, str) for test in tests) and tests:
        return "asserts"
    first = tests[0] if tests else {}
    return "function" if isinstance(first, Mapping) and ("args" in first or entry) else "stdin"


def _case(test: object, mode: str) -> Case:
    if mode in ("asserts", "pytest"):
        code = test.get("code") if isinstance(test, Mapping) else test
        if isinstance(code, str):
            return Case(code=code)
    elif isinstance(test, Mapping):
        given = test.get("stdin", test.get("input"))
        wanted = test.get("stdout", test.get("output"))
        if mode == "stdin" and isinstance(wanted, str | list):
            return Case(stdin=_text(given), stdout=_text(wanted))
        if mode == "function" and "args" in test and isinstance(test["args"], list | tuple):
            kwargs: Any = test.get("kwargs") or {}
            return Case(args=tuple(test["args"]), kwargs=kwargs, result=test.get("result"))
        if mode == "function" and given is not None:
            return Case(args=_arguments(given), result=_json_value(wanted))
    raise RewardError(f"grader 'code' cannot read a test for mode {mode!r}: {test!r:.200}")


def _text(value: object) -> str:
    """Text, or a list of lines."""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return value if isinstance(value, str) else ""


def _arguments(given: object) -> tuple[object, ...]:
    """Arguments as a list, or as one JSON value on each line."""
    if isinstance(given, str):
        return tuple(_json_value(line) for line in given.split("\n") if line.strip())
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _json_value(value: object) -> object:
    if isinstance(value, str):
        try:
            parsed: object = json.loads(value)
        except ValueError:
            return value
        return parsed
    return value
