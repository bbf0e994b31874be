"""Containers of ROCK as shells for terminal tasks, and its remote environments. Needs the extra `rock`."""

import base64
import posixpath
import shlex
import warnings
from collections.abc import Mapping
from typing import Any

from roll_agentic.environment import Reset, Step
from roll_agentic.errors import AgenticError
from roll_agentic.tools.python import ProgramResult
from roll_agentic.tools.toolbox import ToolUnavailable

# What `timeout` answers when it had to end a program.
_TIMED_OUT = (124, 137)
# The service gets this much longer than the command, so that the command's own limit is what counts.
_GRACE_S = 30.0


class RockShell:
    """A shell in a container of a ROCK service, for SWE- and terminal-bench-like tasks.

    The container starts at the first episode and serves all later ones; the working directory is
    emptied between them unless `keep` is set (then each `start` only adds its files).

    Args:
        base_url: Address of the service's admin.
        image: Container image.
        folder: Working directory in the container, absolute.
        keep: Whether files of the image and of earlier episodes stay in that directory.
        sandbox: A sandbox that is already there, with the methods of `rock.sdk.sandbox.client.Sandbox`;
            None to make one.
        **config: Other fields of ROCK's `SandboxConfig`, such as `memory`, `cpus`, `startup_timeout`.

    Raises:
        AgenticError: The directory is not absolute or is the root, rl-rock is not installed, or the
            configuration is not valid.
    """

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8080",
        image: str = "python:3.11",
        folder: str = "/work",
        keep: bool = False,
        sandbox: object | None = None,
        **config: object,
    ) -> None:
        if not folder.startswith("/") or posixpath.normpath(folder) == "/":
            raise AgenticError(f"RockShell needs an absolute folder that is not the root, got {folder!r}")
        self._folder, self._keep = posixpath.normpath(folder), keep
        self._sandbox: Any = sandbox or _new_sandbox({"base_url": base_url, "image": image, **config})
        self._is_up = sandbox is not None

    async def start(self, files: Mapping[str, str]) -> None:
        """Start the container if need be and lay out the files.

        Raises:
            ToolUnavailable: The service or the container broke.
        """
        if not self._is_up:
            await _call("start", self._sandbox.start())
            self._is_up = True
        folder = shlex.quote(self._folder)
        clean = "true" if self._keep else f"rm -rf {folder}"
        laid_out = await self._execute(f"{clean} && mkdir -p {folder}", seconds=60.0, folder="/")
        if laid_out.exit_code != 0:
            raise ToolUnavailable(f"ROCK: cannot prepare {self._folder}: {laid_out.output}")
        for name, text in files.items():
            path = posixpath.join(self._folder, name)
            coded = base64.b64encode(text.encode()).decode()
            parent, target = shlex.quote(posixpath.dirname(path)), shlex.quote(path)
            line = f"mkdir -p {parent} && echo {coded} | base64 -d > {target}"
            written = await self._execute(line, seconds=60.0, folder="/")
            if written.exit_code != 0:
                raise ToolUnavailable(f"ROCK: cannot write {path}: {written.output}")

    async def run(self, command: str, *, seconds: float) -> ProgramResult:
        """Run a command line in the working directory.

        Raises:
            ToolUnavailable: The service or the container broke.
        """
        return await self._execute(command, seconds=seconds, folder=self._folder)

    async def read(self, path: str) -> str | None:
        """The text of a file, None if there is none.

        Raises:
            ToolUnavailable: The service or the container broke.
        """
        name = shlex.quote(posixpath.join(self._folder, path))
        there = await self._execute(f"test -f {name} && cat {name}", seconds=60.0, folder="/")
        return there.output if there.exit_code == 0 else None

    async def close(self) -> None:
        """Stop the container."""
        if self._is_up:
            self._is_up = False
            await _call("stop", self._sandbox.stop())

    async def _execute(self, line: str, *, seconds: float, folder: str) -> ProgramResult:
        from rock.actions import Command  # type: ignore[import-untyped]  # no types

        limited = f"timeout -k 5 {seconds:g} sh -c {shlex.quote(line)}"
        command = Command(command=["sh", "-c", limited], timeout=seconds + _GRACE_S, cwd=folder)
        answer = await _call("execute", self._sandbox.execute(command))
        timed_out = answer.exit_code in _TIMED_OUT
        return ProgramResult(
            output=answer.stdout + answer.stderr,
            exit_code=None if timed_out else answer.exit_code,
            timed_out=timed_out,
        )


class RockEnvironment:
    """An environment that a ROCK service hosts, through its client `rock.sdk.envs`.

    Args:
        env_id: The service's id of the environment.
        client: A client that is already there, with the methods of ROCK's `RockEnv`; None to make one,
            whose service is named by the environment variable `ROCK_BASE_URL`.

    Raises:
        AgenticError: rl-rock is not installed, or the service has no such environment.
    """

    def __init__(self, env_id: str, *, client: object | None = None) -> None:
        self._client: Any = client
        if client is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    from rock.sdk.envs import make  # type: ignore[import-untyped]  # no types
                except ImportError as error:
                    raise AgenticError("this needs rl-rock: pip install 'roll-agentic[rock]'") from error
            try:
                self._client = make(env_id)
            except Exception as error:
                # Boundary to the client, which raises plain exceptions for every reason.
                raise AgenticError(f"ROCK cannot make {env_id!r}: {error}") from error

    def reset(self, *, seed: int) -> Reset:
        """Start an episode at the service."""
        observation, info = self._client.reset(seed=seed)
        return str(observation), dict(info)

    def step(self, action: str, /) -> Step:
        """Answer an action."""
        observation, reward, terminated, truncated, info = self._client.step(action)
        return str(observation), float(reward), bool(terminated), bool(truncated), dict(info)

    def close(self) -> None:
        """Let go of the environment at the service."""
        self._client.close()


def _new_sandbox(config: Mapping[str, object]) -> object:
    with warnings.catch_warnings():
        # Its source has invalid escapes, which warn when it is compiled.
        warnings.simplefilter("ignore")
        try:
            from rock.sdk.sandbox.client import Sandbox  # type: ignore[import-untyped]  # no types
            from rock.sdk.sandbox.config import SandboxConfig  # type: ignore[import-untyped]  # no types
        except ImportError as error:
            raise AgenticError("ROCK's containers need rl-rock: pip install 'roll-agentic[rock]'") from error
    options: Any = config
    try:
        return Sandbox(SandboxConfig(**options))
    except ValueError as error:
        raise AgenticError(f"this is no configuration of a ROCK sandbox: {error}") from error


async def _call(what: str, work: Any) -> Any:
    """The answer of the client.

    Raises:
        ToolUnavailable: It raised.
    """
    try:
        return await work
    except Exception as error:
        # Boundary to the client, which raises plain exceptions for every reason.
        raise ToolUnavailable(f"ROCK: {what}: {type(error).__name__}: {error}") from error
