"""Blocking calls in daemon threads, which nobody waits for when their caller has given up."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T], *, name: str) -> T:
    """What `call()` returns. Unlike `asyncio.to_thread` it keeps neither a deadline nor the exit waiting.

    Args:
        call: Called once, in a thread of its own.
        name: Of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    def run() -> None:
        # A loop that is closed by now has nobody who waits.
        with contextlib.suppress(RuntimeError):
            # The boundary to the call: what it raises belongs to the coroutine that waits.
            try:
                result = call()
            except Exception as error:
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
