"""At most so many requests at a time and a minute, over all callers on an event loop."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from roll_rewards.errors import RewardError


class RateLimit:
    """Lets requests through: `concurrency` at a time, `per_minute` evenly spaced.

    It may be used on several event loops, one after the other, and is pickled without its state.
    """

    def __init__(
        self,
        *,
        concurrency: int = 16,
        per_minute: float | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """A limit.

        Args:
            concurrency: Requests under way, at least 1.
            per_minute: Requests that begin in a minute, above 0; None is no limit.
            sleep: Waits; a virtual clock in tests.

        Raises:
            RewardError: A number is out of its range.
        """
        if concurrency < 1 or (per_minute is not None and not per_minute > 0):
            raise RewardError(
                f"a rate limit needs concurrency >= 1 and per_minute > 0, got {concurrency} and {per_minute}"
            )
        self._concurrency, self._per_minute, self._sleep = concurrency, per_minute, sleep
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._gates = weakref.WeakKeyDictionary()
        self._next = float("-inf")

    def __reduce__(self) -> tuple[Callable[..., "RateLimit"], tuple[int, float | None]]:
        return _rate_limit, (self._concurrency, self._per_minute)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds one place; entered when it is one's turn."""
        loop = asyncio.get_running_loop()
        gate = self._gates.setdefault(loop, asyncio.Semaphore(self._concurrency))
        async with gate:
            if self._per_minute is not None:
                # The place in the row is taken before the wait, so that two callers never share one.
                start = max(self._next, loop.time())
                self._next = start + 60.0 / self._per_minute
                if start > loop.time():
                    await self._sleep(start - loop.time())
            yield


def _rate_limit(concurrency: int, per_minute: float | None) -> RateLimit:
    return RateLimit(concurrency=concurrency, per_minute=per_minute)
