"""The next deadline of a live scheduler as a timer of the event loop. Used by the driver."""

import asyncio
from collections.abc import Callable

__all__ = ["DeadlineTimer"]

SHORTEST_S = 0.001


class DeadlineTimer:
    """At most one timer, for the earliest moment that was asked for.

    Args:
        clock: Seconds, monotonic.
        expired: Called when the moment has come.
    """

    def __init__(self, clock: Callable[[], float], expired: Callable[[], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def arm(self, at: float | None) -> None:
        """Calls back at a moment of the clock, None for never, unless it does so earlier anyway."""
        if at is None or (self._handle is not None and self._at <= at):
            return
        self.cancel()
        delay = max(at - self._clock(), SHORTEST_S)
        self._handle, self._at = asyncio.get_running_loop().call_later(delay, self._on_time), at

    def cancel(self) -> None:
        """Does not call back."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_time(self) -> None:
        self._handle = None
        self._expired()
