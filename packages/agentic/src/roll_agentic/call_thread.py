"""One daemon thread that makes the blocking calls of one environment. Used by environment sessions.

Always the same thread, because databases, browsers and simulators may insist on it; a daemon outside
any executor, because a call that hangs must neither occupy a shared worker nor delay the exit.
"""

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from roll_agentic.errors import AgenticError

T = TypeVar("T")


class CallThread:
    """Calls functions one after the other in a thread of its own, which starts at once.

    Args:
        name: Name of the thread, for debuggers.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """What `function()` returns, with the caller's context variables.

        Raises:
            Exception: Whatever `function` raises. `SystemExit` and other exceptions that would take
                the event loop down with them arrive as `AgenticError`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        self._calls.put(lambda: context.run(_answer, function, future, loop))
        return await future

    def close(self) -> None:
        """Let the thread end once its current call has; calls that still wait are not made."""
        self._calls.put(None)


def _serve(calls: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()


def _answer(function: Callable[[], T], future: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    """Make one call and hand its outcome to the loop that waits for it."""
    # Boundary to foreign code: everything it raises belongs to the coroutine that waits.
    try:
        result = function()
    except BaseException as error:
        deliver = functools.partial(_fail, future, _awaitable_error(error))
    else:
        deliver = functools.partial(_succeed, future, result)
    # The loop may be closed by now: then nobody waits for the answer.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(deliver)


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _awaitable_error(error: BaseException) -> Exception:
    """The error in a form that a future can carry without stopping the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = AgenticError(f"the call raised {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
