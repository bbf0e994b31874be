"""The one place where what foreign code does wrong becomes a fault. Used by environment and game sessions."""

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from roll_agentic.call_thread import CallThread
from roll_agentic.deadlines import within
from roll_agentic.errors import DeadlineMissed, EnvironmentFault

T = TypeVar("T")

_log = logging.getLogger(__name__)
_MESSAGE_CHARS = 2000


class Boundary:
    """Calls the methods of one foreign object, plain ones in a thread and `async` ones as they are.

    Args:
        name: Name of the object's class, for messages.
        deadline_s: Seconds for each call, above 0.
    """

    def __init__(self, name: str, *, deadline_s: float) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._thread: CallThread | None = None

    async def call(self, method: str, function: Callable[[], Any], *, within_s: float) -> object:
        """What the function returns, awaited if need be.

        Args:
            method: Name of the method, for messages.
            function: Makes the call.
            within_s: A deadline for this call, should it be shorter.

        Raises:
            EnvironmentFault: It raised or missed its deadline.
        """
        try:
            return await within(self._answer(function), deadline_s=min(self._deadline_s, within_s))
        except DeadlineMissed as missed:
            # The thread may be stuck in this call: the next call gets another one.
            self.close()
            raise EnvironmentFault("deadline", f"{self.name}.{method}: {missed}") from missed
        except asyncio.CancelledError:
            # Nobody waits for this call any more, and it may go on: likewise.
            self.close()
            raise
        except EnvironmentFault:
            raise
        except Exception as error:
            # Boundary to foreign code: this is where an environment's exception becomes a fault.
            _log.debug("%s.%s raised", self.name, method, exc_info=error)
            message = f"{self.name}.{method} raised {type(error).__name__}: {error}"[:_MESSAGE_CHARS]
            raise EnvironmentFault("error", message) from error

    def invalid(self, method: str, expected: str, got: object) -> EnvironmentFault:
        """The fault of an answer in a wrong form."""
        message = f"{self.name}.{method} must return {expected}, got {type(got).__name__} {got!r:.80}"
        return EnvironmentFault("invalid", message)

    def close(self) -> None:
        """Let the thread go, if there is one; the next call gets another."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def _answer(self, function: Callable[[], Any]) -> object:
        plain = function.func if isinstance(function, functools.partial) else function
        if inspect.iscoroutinefunction(plain):
            answer = function()
        else:
            if self._thread is None:
                self._thread = CallThread(f"environment {self.name}")
            answer = await self._thread.call(function)
        return await answer if inspect.isawaitable(answer) else answer


async def made(make: Callable[[], T], *, deadline_s: float = 60.0) -> T:
    """What `make()` returns, called in a thread of its own.

    Args:
        make: May block.
        deadline_s: Seconds to wait, above 0.

    Raises:
        DeadlineMissed: It did not return in time.
        Exception: Whatever it raises.
    """
    thread = CallThread("make an environment")
    try:
        return await within(thread.call(make), deadline_s=deadline_s)
    finally:
        thread.close()


async def close_environment(environment: object, *, deadline_s: float = 10.0) -> None:
    """Close an environment that has a method `close`; what it raises is logged, the wait is bounded.

    Args:
        environment: Any.
        deadline_s: Seconds to wait, above 0.
    """
    close = getattr(environment, "close", None)
    if not callable(close):
        return
    boundary = Boundary(type(environment).__name__, deadline_s=deadline_s)
    try:
        await boundary.call("close", close, within_s=deadline_s)
    except EnvironmentFault as fault:
        _log.warning("%s", fault)
    finally:
        boundary.close()
