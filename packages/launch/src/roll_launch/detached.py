"""Work that nobody waits for."""

import asyncio
from collections.abc import Coroutine

_detached: set["asyncio.Task[None]"] = set()


def detach(work: Coroutine[object, object, None]) -> None:
    """Runs `work` beside the caller and keeps it alive until it ends; how it ends is not told."""
    task = asyncio.get_running_loop().create_task(work)
    _detached.add(task)
    task.add_done_callback(_forget)


def _forget(task: "asyncio.Task[None]") -> None:
    _detached.discard(task)
    if not task.cancelled():
        task.exception()
