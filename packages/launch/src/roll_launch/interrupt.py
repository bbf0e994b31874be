"""Ctrl-C, SIGTERM, a closed terminal: stop at the next step boundary, or give up on it after a grace time.

`run.py` installs it around a run; pipelines ask `requested` between steps.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that a step may still take; with the clean-up it keeps Ctrl-C under ten seconds."""


class Interrupted(Exception):
    """The run was interrupted by a signal; not an error of the run."""


class Interrupt:
    """The first signal is a request; a second one, or the end of the grace time, is a cancellation."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._task: asyncio.Task[object] | None = None
        self._end_of_grace: asyncio.TimerHandle | None = None
        self._boundary_ahead = False
        self._deaf = False
        self.requested = False

    def stop_at_boundary(self) -> None:
        """Call before each step. A signal before the first call cancels at once: no boundary is ahead.

        Raises:
            Interrupted: A signal arrived since the run began.
        """
        if self.requested:
            self._disarm()
            raise Interrupted
        self._boundary_ahead = True

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """While the body takes things down, no timer and no further signal cancels it; it bounds itself."""
        self._disarm()
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handles SIGINT, SIGTERM and SIGHUP while the body runs; the current task is the one to cancel."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        numbers = [signal.SIGINT, signal.SIGTERM]
        # A run under `nohup` is to outlive its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, loop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            self._disarm()

    def _signalled(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None:
            return
        wait_for_boundary = self._boundary_ahead and not self.requested
        self.requested = True
        if self._deaf:
            return
        if not wait_for_boundary:
            self._task.cancel()
            return
        logger.warning(
            "interrupted: stopping at the next step boundary, at the latest in %.0f s", self._grace_s
        )
        self._end_of_grace = loop.call_later(self._grace_s, self._task.cancel)

    def _disarm(self) -> None:
        """The boundary was reached in time: what follows is clean-up, and is not to be cancelled."""
        if self._end_of_grace is not None:
            self._end_of_grace.cancel()
