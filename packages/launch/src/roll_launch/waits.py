"""Waits with a name, a deadline and a line that says what is pending.

Pipelines wrap every await on a role in `Waits.wait`; the watchdog that `Waits.watch` runs reports each wait
that lasts, so that a hung run always says what it hangs on.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from roll_launch.errors import RollLaunchError

logger = logging.getLogger(__name__)

Describe = Callable[[], str]

NAMES_SHOWN = 8


class WaitExpired(RollLaunchError):
    """A named wait ran past its deadline; the message says what was pending."""


@dataclass(slots=True, eq=False)
class Wait:
    """One wait in progress: Wait(name="rollout of step 3", deadline_s=600.0, started=12.5, pending=None)."""

    name: str
    deadline_s: float
    started: float
    pending: Describe | None = field(default=None, repr=False)

    def line(self, now: float) -> str:
        """The watchdog line: how long, of how much, for what, and what is pending."""
        pending = f": {self.pending()}" if self.pending else ""
        return (
            f"waiting {now - self.started:.0f} s of at most {self.deadline_s:.0f} s for {self.name}{pending}"
        )


class Waits:
    """The waits of one run.

    Args:
        report_after_s: A wait older than this is reported by the watchdog, and again after as long.
        clock: Seconds, monotonic.
        report: Takes each watchdog line; the module's logger by default.
    """

    def __init__(
        self,
        *,
        report_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = logger.warning,
    ) -> None:
        self._report_after_s = report_after_s
        self._clock = clock
        self._report = report
        self._open: list[Wait] = []

    @contextlib.asynccontextmanager
    async def wait(
        self, name: str, *, deadline_s: float, pending: Describe | None = None
    ) -> AsyncIterator[None]:
        """Bounds the awaits inside by `deadline_s` seconds.

        Raises:
            WaitExpired: The deadline passed; names the wait and what was pending.
        """
        wait = Wait(name=name, deadline_s=deadline_s, started=self._clock(), pending=pending)
        loop, scope, tail = asyncio.get_running_loop(), asyncio.timeout(None), ""

        def expire() -> None:
            # Described now: once the body is cancelled, nothing is pending any more.
            nonlocal tail
            tail = f"; pending: {pending()}" if pending else ""
            scope.reschedule(loop.time())

        with self._registered(wait):
            try:
                async with scope:
                    timer = loop.call_later(deadline_s, expire)
                    try:
                        yield
                    finally:
                        timer.cancel()
            except TimeoutError as error:
                if not scope.expired():
                    raise
                raise WaitExpired(f"{name} did not end within {deadline_s:g} s{tail}") from error

    def lines(self) -> list[str]:
        """What is being waited for now, oldest first."""
        now = self._clock()
        return [wait.line(now) for wait in self._open]

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Runs the watchdog while the body runs."""
        watchdog = asyncio.create_task(self._watch(), name="watchdog")
        try:
            yield
        finally:
            watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watchdog

    async def _watch(self) -> None:
        reported: dict[int, float] = {}
        while True:
            await asyncio.sleep(self._report_after_s / 4)
            now = self._clock()
            for wait in list(self._open):
                last = reported.get(id(wait), wait.started)
                if now - last >= self._report_after_s:
                    reported[id(wait)] = now
                    self._report(wait.line(now))
            reported = {key: at for key, at in reported.items() if any(id(w) == key for w in self._open)}

    @contextlib.contextmanager
    def _registered(self, wait: Wait) -> Iterator[None]:
        self._open.append(wait)
        try:
            yield
        finally:
            self._open.remove(wait)


def listed(names: Iterable[str]) -> str:
    """The first names in order, and how many more there are: `actor-0, actor-1, actor-10 and 253 more`."""
    everything = sorted(names)
    more = len(everything) - NAMES_SHOWN
    return ", ".join(everything[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
