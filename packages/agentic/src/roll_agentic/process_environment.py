"""An environment in a process of its own, which is killed when it hangs. Used for fragile environments.

Parent and child speak lines of JSON over pipes. The child is this module run with `python -m`; whatever
the environment prints goes to standard error, so that it cannot disturb the answers.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from roll_agentic.environment import Info, Reset, Step
from roll_agentic.errors import AgenticError, EnvironmentFault

_LONGEST_LINE = 64 * 1024 * 1024


class ProcessEnvironment:
    """The environment `make(name, **config)` in a process of its own.

    The process starts at the first reset. It is killed when a call is cancelled (say, at its deadline)
    or it breaks, and the next reset starts another; so a hanging environment costs one episode. Info
    must be JSON; arrays become lists, and anything else its `repr`.

    Args:
        name: What `make` takes.
        start_s: Seconds for the start of the process, above 0.
        **config: Options, as JSON.

    Raises:
        AgenticError: The options are not JSON.
    """

    def __init__(self, name: str, *, start_s: float = 60.0, **config: object) -> None:
        try:
            self._spec = json.dumps({"name": name, "config": config})
        except (TypeError, ValueError) as error:
            raise AgenticError(f"options of an environment in a process must be JSON: {error}") from error
        self._name, self._start_s = name, start_s
        self._process: asyncio.subprocess.Process | None = None

    async def reset(self, *, seed: int) -> Reset:
        """Start an episode, and the process if there is none.

        Raises:
            EnvironmentFault: The process or the environment in it broke.
        """
        if self._process is None:
            await self._start()
        observation, info = await self._ask({"reset": seed})
        return observation, info

    async def step(self, action: str, /) -> Step:
        """Answer an action.

        Raises:
            EnvironmentFault: The process or the environment in it broke.
        """
        if self._process is None:
            raise AgenticError(f"environment {self._name!r} has no process; call reset before step")
        observation, reward, terminated, truncated, info = await self._ask({"step": action})
        return observation, reward, terminated, truncated, info

    async def close(self) -> None:
        """Kill the process, if there is one."""
        process = self._kill()
        if process is not None:
            await process.wait()

    def _kill(self) -> asyncio.subprocess.Process | None:
        """Kill the process without waiting for its end; the next reset starts another."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return process

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "roll_agentic.process_environment",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._process = process
        try:
            async with asyncio.timeout(self._start_s):
                await self._exchange(process, self._spec)
        except asyncio.CancelledError:
            # A process that is half started must not answer the next call.
            self._kill()
            raise
        except TimeoutError as error:
            await self.close()
            raise EnvironmentFault(
                "deadline", f"{self._name}: no start within {self._start_s:g} s"
            ) from error

    async def _ask(self, request: Mapping[str, object]) -> list[Any]:
        assert self._process is not None
        try:
            return await self._exchange(self._process, json.dumps(request))
        except asyncio.CancelledError:
            # Nobody waits for the answer any more: the process may hang in it.
            self._kill()
            raise

    async def _exchange(self, process: asyncio.subprocess.Process, line: str) -> list[Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            answer = await process.stdout.readline()
        except (OSError, ValueError) as error:
            await self.close()
            raise EnvironmentFault(
                "error", f"{self._name}: the pipe to its process broke: {error}"
            ) from error
        if not answer:
            code = await process.wait()
            self._process = None
            raise EnvironmentFault("error", f"{self._name}: its process ended with code {code}")
        told = json.loads(answer)
        if "error" in told:
            raise EnvironmentFault(told["kind"], f"{self._name}: {told['error']}")
        result: list[Any] = told["answer"]
        return result


def serve() -> None:
    """Answer requests on standard input until it ends; the child's main loop."""
    # Duplicated, so that what the environment prints cannot get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(_serve(answers))


async def _serve(answers: Any) -> None:
    from roll_agentic.registry import make
    from roll_agentic.session import EnvironmentSession

    session: EnvironmentSession | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if session is None:
                session = EnvironmentSession(make(request["name"], **request["config"]), deadline_s=1e9)
                answer: list[object] = []
            elif "reset" in request:
                observation, info = await session.reset(seed=request["reset"])
                answer = [observation, _plain(info)]
            else:
                step = await session.step(request["step"])
                answer = [step.observation, step.reward, step.terminated, step.truncated, _plain(step.info)]
            told: dict[str, object] = {"answer": answer}
        except EnvironmentFault as fault:
            told = {"kind": fault.kind, "error": fault.message}
        except AgenticError as error:
            told = {"kind": "error", "error": str(error)}
        answers.write(json.dumps(told, default=_json_value) + "\n")
        answers.flush()


def _plain(info: Info) -> dict[str, object]:
    return {str(key): value for key, value in info.items()}


def _json_value(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple | set | frozenset) else repr(value)


if __name__ == "__main__":
    serve()
