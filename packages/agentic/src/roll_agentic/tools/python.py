"""A tool that runs Python in an injected sandbox. This package ships no sandbox."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from roll_agentic.tools.schema import ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program went.

    Example: `ProgramResult(output="42\\n", exit_code=0, timed_out=False)`.

    Attributes:
        output: Standard output and error together.
        exit_code: 0 for success; None when it was killed.
        timed_out: It was killed at its time limit.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False


class Sandbox(Protocol):
    """Where programs run that a model wrote: isolated, limited in time, memory and network."""

    async def run_python(self, code: str, *, seconds: float) -> ProgramResult:
        """Run a program from the beginning.

        Args:
            code: Source text.
            seconds: Time limit, above 0; a program that exceeds it is killed and has a result.

        Raises:
            ToolUnavailable: The sandbox itself broke.
        """
        ...


class PythonTool:
    """The tool `python(code)`.

    Args:
        sandbox: Runs the programs.
        seconds: Time limit of each, above 0.
    """

    def __init__(self, sandbox: Sandbox, *, seconds: float = 5.0) -> None:
        self._sandbox = sandbox
        self._seconds = seconds

    @property
    def schema(self) -> ToolSchema:
        """The schema of `python(code)`."""
        return {
            "type": "function",
            "function": {
                "name": "python",
                "description": "Run a Python program and read what it prints. Nothing is kept between runs.",
                "parameters": {
                    "type": "object",
                    "properties": {"code": {"type": "string", "description": "The program."}},
                    "required": ["code"],
                },
            },
        }

    async def call(self, arguments: Mapping[str, object]) -> str:
        """What the program printed, or how it failed.

        Raises:
            ToolUnavailable: The sandbox itself broke.
        """
        result = await self._sandbox.run_python(str(arguments["code"]), seconds=self._seconds)
        return describe(result, self._seconds)


def describe(result: ProgramResult, seconds: float) -> str:
    """A program's result for a model to read."""
    if result.timed_out:
        return f"{result.output}\nError: stopped after {seconds:g} s".lstrip()
    if result.exit_code != 0:
        return f"{result.output}\nError: exit code {result.exit_code}".lstrip()
    return result.output or "(no output)"
