"""ROCK's sandboxes as a place to run programs in (extra `rock`). Called by the `code` grader."""

import importlib
import secrets
import shlex
from dataclasses import dataclass, field
from typing import Any

from roll_rewards.errors import RewardError
from roll_rewards.graders.code.remote import Program, Ran
from roll_rewards.remote.patience import authorization
from roll_rewards.remote.transport import RemoteError

_MAIN = {"python": "main.py", "cpp": "main.cpp", "shell": "main.sh"}
_RUN = {"python": "python3 main.py", "cpp": "./main", "shell": "bash main.sh"}
_COMPILE = "g++ -O2 -std=c++17 -pipe -o main main.cpp"
_SPARE_S = 30.0
# What timeout(1) says when it ended a program, by its first and by its second signal.
_ENDED_BY_TIMEOUT = (124, 137)


@dataclass(slots=True, kw_only=True)
class RockService:
    """A fresh ROCK sandbox for each sample: programs of different samples never meet.

    Attributes:
        url: Address of ROCK's admin service.
        image: Container image with the language's interpreter or compiler.
        key_variable: Environment variable with a bearer token; None sends none.
        memory: Memory of the sandbox, as `2g`.
        name: What stands for it in parts of a score.
    """

    url: str
    image: str
    key_variable: str | None = None
    memory: str = "2g"
    name: str = "rock"
    _sandbox: Any = field(default=None)

    async def run(self, program: Program) -> Ran:
        """See `SandboxService.run`."""
        try:
            if self._sandbox is None:
                await self._start()
            return await self._run(program)
        except RewardError:
            raise
        except Exception as error:
            # Boundary to ROCK's client, which raises plain exceptions of every kind.
            raise RemoteError(
                f"ROCK could not run a program: {type(error).__name__}: {error}"[:500]
            ) from error

    async def close(self) -> None:
        """Stop the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.stop()

    async def _start(self) -> None:
        client, config = _client()
        options: dict[str, Any] = {"base_url": self.url, "image": self.image, "memory": self.memory}
        headers = authorization(self.key_variable)
        if headers:
            options["extra_headers"] = headers
        sandbox = client.Sandbox(config.SandboxConfig(**options))
        self._sandbox = sandbox
        await sandbox.start()

    async def _run(self, program: Program) -> Ran:
        folder = f"/tmp/roll-{secrets.token_hex(8)}"
        await self._execute(f"mkdir -m 700 {folder}", 60.0)
        files = {_MAIN[program.language]: program.code, "stdin": program.stdin}
        files |= {name: data.decode() for name, data in program.files.items()}
        for name, content in files.items():
            written = await self._sandbox.write_file_by_path(content, f"{folder}/{name}")
            if not written.success:
                raise RemoteError(f"ROCK could not write a file: {written.message}"[:500])
        try:
            if program.language == "cpp":
                compiled = await self._execute(
                    _limited(folder, _COMPILE, program.compile_s), program.compile_s
                )
                if compiled.code != 0:
                    return compiled
            command = _limited(folder, _RUN[program.language] + " < stdin", program.wall_s)
            ran = await self._execute(command, program.wall_s)
            return Ran(
                code=ran.code,
                timed_out=ran.timed_out,
                stdout=ran.stdout,
                stderr=ran.stderr,
                seconds=ran.seconds,
            )
        finally:
            await self._execute(f"rm -rf {folder}", 60.0)

    async def _execute(self, script: str, wall_s: float) -> Ran:
        actions = importlib.import_module("rock.actions")
        command = actions.Command(command=["sh", "-c", script], timeout=wall_s + _SPARE_S)
        answer = await self._sandbox.execute(command)
        late = answer.exit_code in _ENDED_BY_TIMEOUT
        return Ran(
            code=None if late else answer.exit_code,
            timed_out=late,
            stdout=answer.stdout,
            stderr=answer.stderr,
            seconds=wall_s if late else 0.0,
            compiled=False,
        )


def _limited(folder: str, command: str, wall_s: float) -> str:
    """A shell command in a folder, ended with its children when its time is up."""
    return f"cd {folder} && timeout -k 1 {wall_s:g} sh -c {shlex.quote(command)}"


def _client() -> tuple[Any, Any]:
    """ROCK's client modules.

    Raises:
        RewardError: They are not installed.
    """
    try:
        return (
            importlib.import_module("rock.sdk.sandbox.client"),
            importlib.import_module("rock.sdk.sandbox.config"),
        )
    except ImportError as error:
        raise RewardError(
            f"backend 'rock' needs the package rl-rock: pip install 'roll-rewards[rock]' ({error})"
        ) from error
