"""A call on its way through a pool, and the memory of the slowest ones. Used by `WorkerPool`."""

import asyncio
import heapq
from dataclasses import dataclass

from roll_rewards.workers.errors import WorkerError
from roll_rewards.workers.settings import SlowCall


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call: what is sent, who waits for it, and until when.

    Attributes:
        function: Import path.
        frame: Bytes for the worker.
        deadline_s: Wall seconds from its start.
        future: Where the caller waits.
        label: Its name in reports.
        started: Monotonic time of its start, 0 before.
        disowned: True on the copy that a slow worker keeps of a call that went to another one.
    """

    function: str
    frame: bytes
    deadline_s: float
    future: "asyncio.Future[object]"
    label: str
    started: float = 0.0
    disowned: bool = False

    def succeed(self, value: object) -> None:
        """Hand the result to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: WorkerError) -> None:
        """Hand the error to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def disowned_copy(self) -> "Call":
        """What stands in a slow worker's list for a call that another worker makes now."""
        return Call(
            function=self.function,
            frame=b"",
            deadline_s=self.deadline_s,
            future=self.future,
            label=self.label,
            disowned=True,
        )


class SlowestCalls:
    """Keeps the slowest calls."""

    def __init__(self, size: int) -> None:
        """Args:
        size: How many are kept, at least 0.
        """
        self._size = size
        self._heap: list[SlowCall] = []

    def add(self, call: Call, outcome: str, seconds: float) -> None:
        """Take in a call that ended.

        Args:
            call: The call.
            outcome: See `SlowCall.outcome`.
            seconds: Wall time in the worker.
        """
        if len(self._heap) == self._size and (not self._heap or self._heap[0].seconds >= seconds):
            return
        slow = SlowCall(seconds=seconds, label=call.label, function=call.function, outcome=outcome)
        push = heapq.heappush if len(self._heap) < self._size else heapq.heapreplace
        push(self._heap, slow)

    def listed(self) -> tuple[SlowCall, ...]:
        """The slowest calls, slowest first."""
        return tuple(sorted(self._heap, reverse=True))
