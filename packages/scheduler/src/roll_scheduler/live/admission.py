"""Prompts come in as there is room for them. Used by the driver."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from roll_scheduler.lifecycle.core import SchedulerCore
from roll_scheduler.live.work import Work

__all__ = ["Admission"]

P = TypeVar("P")

TICKETS_AT_ONCE = 512
"""Tickets that are admitted before the event loop turns: starting each may take part of a millisecond."""


class Admission(Generic[P]):
    """Takes prompts from the caller's iterable.

    Args:
        prompts: The iterable.
        core: Says how many.
        work: Keeps prompts and carries out what the core asks for.
        group_size: Tickets of a prompt.
        clock: Seconds, monotonic.
        go_on: Called in the next turn of the event loop after as many as are taken in one.
    """

    def __init__(
        self,
        prompts: Iterable[P],
        *,
        core: SchedulerCore,
        work: Work[P, Any, Any],
        group_size: int,
        clock: Callable[[], float],
        go_on: Callable[[], None],
    ) -> None:
        self._prompts: Iterator[P] = iter(prompts)
        self._core = core
        self._work = work
        self._at_once = max(1, TICKETS_AT_ONCE // group_size)
        self._clock = clock
        self._go_on = go_on
        self._handle: asyncio.Handle | None = None

    def take(self) -> None:
        """Sends out what may go, then takes prompts as long as there is room; after every 512 tickets the
        event loop turns first. What the iterable raises comes through.
        """
        if self._handle is not None:
            return
        enough = self._core.next_group + self._at_once
        self._refill()
        while self._core.room > 0:
            if self._core.next_group >= enough:
                self._handle = asyncio.get_running_loop().call_soon(self._next_turn)
                return
            try:
                prompt = next(self._prompts)
            except StopIteration:
                self._core.exhaust()
                self._refill()
                return
            if self._core.pass_over():
                continue
            self._work.store.open(self._core.next_group, prompt)
            self._work.carry_out(self._core.admit(self._clock()))

    def cancel(self) -> None:
        """Does not go on."""
        if self._handle is not None:
            self._handle.cancel()

    def _refill(self) -> None:
        self._work.carry_out(self._core.refill(self._clock()))

    def _next_turn(self) -> None:
        self._handle = None
        self._go_on()
