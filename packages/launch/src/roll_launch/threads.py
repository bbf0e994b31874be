"""Blocking calls in daemon threads, which nobody waits for when their caller has given up."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(
    call: Callable[[], T], *, name: str, unwanted: Callable[[T], None] | None = None
) -> T:
    """What `call()` returns. Unlike `asyncio.to_thread` it keeps neither a deadline nor the exit waiting.

    Args:
        call: Called once, in a thread of its own.
        name: Of the thread.
        unwanted: Takes a result that comes after the caller was cancelled, in that thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    abandoned = threading.Event()
    handing_over = threading.Lock()

    def succeed(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    def run() -> None:
        # The boundary to the call: what it raises belongs to the coroutine that waits.
        try:
            result = call()
        except Exception as error:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(functools.partial(fail, error))
            return
        with handing_over:
            if not abandoned.is_set():
                loop.call_soon_threadsafe(functools.partial(succeed, result))
                return
        if unwanted is not None:
            unwanted(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with handing_over:
            abandoned.set()
        if future.done() and not future.cancelled() and future.exception() is None and unwanted is not None:
            unwanted(future.result())
        raise
