"""Waiting for foreign code, bounded. Called at the boundaries to environments and policies."""

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from roll_agentic.errors import DeadlineMissed

T = TypeVar("T")

# How long cancelled work may clean up before it is left behind.
_CLEANUP_S = 1.0


async def within(work: Awaitable[T], *, deadline_s: float) -> T:
    """The result of some work; the wait ends a second after the deadline at the latest.

    Args:
        work: Cancelled when the deadline is missed; left running should it resist.
        deadline_s: Seconds, above 0; infinite for none.

    Raises:
        DeadlineMissed: There was no result in time, or the work cancelled itself.
        Exception: Whatever the work raises.
    """
    task = asyncio.ensure_future(work)
    try:
        finished, _ = await asyncio.wait({task}, timeout=None if deadline_s == math.inf else deadline_s)
    except asyncio.CancelledError:
        await _abandon(task)
        raise
    if not finished:
        await _abandon(task)
        raise DeadlineMissed(f"no answer within {deadline_s:g} s")
    if task.cancelled():
        raise DeadlineMissed("the call cancelled itself")
    return task.result()


async def _abandon(task: "asyncio.Future[T]") -> None:
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    await asyncio.wait({task}, timeout=_CLEANUP_S)
