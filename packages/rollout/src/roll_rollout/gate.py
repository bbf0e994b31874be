"""A gate before an engine in another process: requests wait in front of it while the engine stands still."""

import asyncio


class Gate:
    """Open unless someone holds it closed."""

    def __init__(self) -> None:
        self._holds: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether requests pass at once."""
        return self._open.is_set()

    def hold(self, reason: str) -> None:
        """Closes the gate."""
        self._holds.add(reason)
        self._open.clear()

    def release(self, reason: str) -> None:
        """Takes back a hold; with the last one the gate opens."""
        self._holds.discard(reason)
        if not self._holds:
            self._open.set()

    async def passed(self, halted: asyncio.Event) -> bool:
        """Returns True when the gate is open, or False when `halted` is set before."""
        if self._open.is_set() or halted.is_set():
            return not halted.is_set()
        waits = [asyncio.ensure_future(each.wait()) for each in (self._open, halted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not halted.is_set()
