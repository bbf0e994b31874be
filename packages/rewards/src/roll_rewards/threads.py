"""Blocking graders in threads of their own, so that they never stop the event loop. Called by graders.

An executor would not do: a grader that hangs would occupy one of its workers for good, and the
interpreter would wait for it at exit. A daemon thread that nobody waits for any more is left alone.
"""

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

from roll_rewards.errors import RewardError

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T], *, name: str) -> T:
    """What `function()` returns, computed in a daemon thread with the caller's context variables.

    Cancelling the wait abandons the thread; Python cannot stop it.

    Args:
        function: Called once, without arguments.
        name: Name of the thread, for debuggers.

    Raises:
        Exception: Whatever `function` raises. `SystemExit` and other exceptions that would take the
            event loop down with them arrive as `RewardError`.
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
        # Boundary to foreign code: everything it raises belongs to the coroutine that waits.
        try:
            result = function()
        except BaseException as error:
            answer = functools.partial(fail, _awaitable_error(error))
        else:
            answer = functools.partial(succeed, result)
        # The loop may be closed by now: then nobody waits for the answer.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answer)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return await future


def _awaitable_error(error: BaseException) -> Exception:
    """The error in a form that a future can carry without stopping the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RewardError(f"the call raised {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
