"""The tasks of a live scheduler: calls of the caller's functions. Used by the driver."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal, TypeAlias

from roll_scheduler.errors import DeadlineExceeded
from roll_scheduler.ticket import Ticket

__all__ = ["CLOSE_DEADLINE_S", "Calls", "Stage", "ignored_cancellation"]

CLOSE_DEADLINE_S = 10.0
"""Seconds in which a call that was cancelled has to end."""

Stage: TypeAlias = Literal["generate", "grade"]


class Calls:
    """Tasks by attempt: a ticket that is generated twice at a time has two.

    Args:
        finished: Called with each task that ended and was not aborted.
    """

    def __init__(self, finished: Callable[[Stage, Ticket, asyncio.Task[Any]], None]) -> None:
        self._finished = finished
        self._running: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._generating: dict[tuple[int, int], asyncio.Event | None] = {}
        self._aborted: set[asyncio.Task[Any]] = set()

    def start(
        self,
        stage: Stage,
        ticket: Ticket,
        call: Coroutine[Any, Any, object],
        *,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """Starts a call; `stopping` is what `stop` sets."""
        task = asyncio.get_running_loop().create_task(call, name=f"{stage} ticket {ticket.id}")
        self._running[ticket.id, ticket.attempt] = task
        if stage == "generate":
            self._generating[ticket.id, ticket.attempt] = stopping
        task.add_done_callback(partial(self._ended, stage, ticket))

    def stop(self, ticket: Ticket) -> None:
        """Asks a generation to end; one that has ended already is left alone."""
        stopping = self._generating.get((ticket.id, ticket.attempt))
        if stopping is not None:
            stopping.set()

    def abort(self, ticket: Ticket) -> None:
        """Cancels the call of a ticket; what it still returns or raises is ignored."""
        key = ticket.id, ticket.attempt
        self._generating.pop(key, None)
        task = self._running.pop(key, None)
        if task is not None:
            self._aborted.add(task)
            task.cancel()

    def abort_all(self) -> None:
        """Cancels whatever runs; what it still returns or raises is ignored."""
        for task in self._running.values():
            self._aborted.add(task)
            task.cancel()
        self._running.clear()
        self._generating.clear()

    async def quiet(self, seconds: float, *, generations: bool) -> list[str]:
        """Waits for aborted calls to end, and for all generations if told so.

        Args:
            seconds: How long at most.
            generations: Whether to wait for calls that generate and were not aborted, too.

        Returns:
            Names of the tasks that have not ended, sorted.
        """
        tasks = set(self._aborted)
        if generations:
            tasks |= {self._running[key] for key in self._generating}
        if not tasks:
            return []
        _, running = await asyncio.wait(tasks, timeout=seconds)
        return sorted(task.get_name() for task in running)

    def _ended(self, stage: Stage, ticket: Ticket, task: asyncio.Task[Any]) -> None:
        if task in self._aborted:
            self._aborted.discard(task)
            if not task.cancelled():
                task.exception()
            return
        key = ticket.id, ticket.attempt
        del self._running[key]
        self._generating.pop(key, None)
        self._finished(stage, ticket, task)


def ignored_cancellation(stuck: list[str]) -> DeadlineExceeded:
    """The error for tasks of these names, which did not end."""
    return DeadlineExceeded(f"these ignored their cancellation for {CLOSE_DEADLINE_S} s: {', '.join(stuck)}")
