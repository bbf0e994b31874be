"""The sandbox of roll_rewards behind the seam where roll_agentic's tools run programs."""

from roll_agentic.tools import ProgramResult, ToolUnavailable
from roll_rewards.sandbox import Job, Limits, Outcome, SandboxError, SandboxPool

_ENDED = {
    "memory": "stopped: out of memory",
    "output": "stopped: too much output",
    "disk": "stopped: too many bytes in files",
    "stopped": "stopped",
}


class ToolSandbox:
    """Runs the programs of tools; satisfies `roll_agentic.tools.Sandbox`.

    Args:
        sandboxes: Programs at the same time.
    """

    def __init__(self, *, sandboxes: int) -> None:
        self._pool = SandboxPool(sandboxes=sandboxes)

    async def run_python(self, code: str, *, seconds: float) -> ProgramResult:
        """Runs a program from the beginning.

        Args:
            code: Source text.
            seconds: Wall-clock limit; a program that exceeds it has a result.

        Raises:
            ToolUnavailable: No sandbox can be had.
        """
        source = code.encode("utf-8", errors="replace")
        try:
            outcome = await self._pool.run(
                Job(mode="script", files={"main.py": source}, limits=Limits(wall_s=seconds))
            )
        except SandboxError as error:
            raise ToolUnavailable(f"no sandbox for a program: {error}") from error
        return ProgramResult(
            output=_output(outcome), exit_code=outcome.code, timed_out=outcome.reason == "wall"
        )

    async def close(self) -> None:
        """Ends the sandboxes."""
        await self._pool.close()


def _output(outcome: Outcome) -> str:
    said = (outcome.stdout + outcome.stderr).decode("utf-8", errors="replace")
    return said + _ENDED.get(outcome.reason, "")
