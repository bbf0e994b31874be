"""The thread that a role of this process works on, and the data behind handles that never leave it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from roll_agentic import Episode
from roll_rollout import Completion

from roll_launch.roles import Handle

Result = TypeVar("Result")


class RoleThread:
    """One named thread on which the blocking work of one role runs, in order."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Runs `function` on the thread. A cancelled caller leaves it to end by itself."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)

    def close(self) -> None:
        """Lets go of the thread without waiting for what it is doing."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def completion_of(handle: Handle) -> Completion:
    """The completion behind a handle of this process, where the handle is the completion itself."""
    if not isinstance(handle, Completion):
        raise TypeError(f"a completion was expected in this process, got {type(handle).__name__}")
    return handle


def rollout_behind(handle: Handle) -> Completion | Episode:
    """The completion or episode behind a handle of this process."""
    return handle if isinstance(handle, Episode) else completion_of(handle)
