"""Tests of a program, run in a process of their own that sees the program only through messages.

What the program returns arrives here as plain values of built-in types, or as a stand-in (`Remote`)
for an object that lives in the program's process. The program never sees what a test expects, cannot
patch what the tests use, and its own `__eq__` is never asked.
"""

import json
import os
import sys
import traceback
import types
from typing import Any

from roll_rewards.sandbox.inside.messages import Peer
from roll_rewards.sandbox.inside.stand_ins import Program

_TEST_FILE = "test_solution.py"


def judge(job: dict[str, Any], handle: int, result: int) -> None:
    """Run a job's tests against the program at the other end and write what passed.

    Args:
        job: `kind` (`asserts` or `pytest`), `code`, `operators` (see `Program`) and `names` (under which the
            program can be imported).
        handle: Connected to the program.
        result: Where one line of JSON goes for each test, as soon as it is known.
    """
    with open(result, "w", encoding="utf-8") as report:

        def say(event: dict[str, object]) -> None:
            report.write(json.dumps(event) + "\n")
            report.flush()

        program = Program(Peer(handle), operators=job["operators"])
        error = program.load()
        if error is not None:
            say({"broken": error})
        module = _module(program, job["names"])
        if job["kind"] == "pytest":
            _run_pytest(say)
        else:
            _run_asserts(job, module, say)


def _module(program: Program, names: list[str]) -> types.ModuleType:
    """A module that looks like the program."""

    class _Module(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return program.attribute(name)

        def __setattr__(self, name: str, value: object) -> None:
            program.set_attribute(name, value)

    module = _Module(names[0])
    module.__dict__["__all__"] = [name for name in program.names if not name.startswith("_")]
    for name in names:
        sys.modules[name] = module
    return module


def _run_asserts(job: dict[str, Any], module: types.ModuleType, say: Any) -> None:
    scope: dict[str, object] = {"__name__": "__test__", "__builtins__": __builtins__}
    for name in module.__dict__["__all__"]:
        scope[name] = getattr(module, name)
    try:
        exec(compile(job["code"], _TEST_FILE, "exec", dont_inherit=True), scope)
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        say({"test": 0, "passed": False, "why": text[:1000]})
    else:
        say({"test": 0, "passed": True})


def _run_pytest(say: Any) -> None:
    try:
        import pytest
    except ImportError as error:
        say({"unable": f"pytest cannot be imported: {error}"})
        return

    class Reporter:
        def pytest_collection_finish(self, session: Any) -> None:
            say({"collected": len(session.items)})

        def pytest_runtest_logreport(self, report: Any) -> None:
            expected = hasattr(report, "wasxfail")
            if report.when == "call" or report.outcome != "passed":
                passed = report.when == "call" and (report.passed or (expected and report.skipped))
                why = "" if passed else str(report.longrepr)[-1000:]
                say({"test": report.nodeid, "when": report.when, "passed": passed, "why": why})

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                say({"broken": str(report.longrepr)[-1000:]})

    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--rootdir",
        os.getcwd(),
        "--confcutdir",
        os.getcwd(),
    ]
    options += ["-c", os.devnull, "--import-mode=importlib", "--disable-plugin-autoload", _TEST_FILE]
    if tuple(int(part) for part in pytest.__version__.split(".")[:2]) < (8, 4):
        options.remove("--disable-plugin-autoload")
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest.main(options, plugins=[Reporter()])
