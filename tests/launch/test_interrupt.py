"""Signals: the step boundary first, cancellation after the grace time or a second signal."""

import asyncio
import os
import signal

import pytest
from roll_launch.interrupt import Interrupt, Interrupted


async def _signal_self(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)


async def test_the_first_signal_is_seen_at_the_next_boundary() -> None:
    interrupt = Interrupt(grace_s=60)
    with interrupt.installed():
        interrupt.stop_at_boundary()
        await _signal_self()
        with pytest.raises(Interrupted):
            interrupt.stop_at_boundary()


@pytest.mark.parametrize(("grace_s", "signals"), [(0.05, 1), (60.0, 2)], ids=["grace time", "second signal"])
async def test_a_step_that_does_not_end_is_cancelled(grace_s: float, signals: int) -> None:
    interrupt = Interrupt(grace_s=grace_s)

    async def run() -> None:
        with interrupt.installed():
            interrupt.stop_at_boundary()
            asyncio.get_running_loop().create_task(_signal_self(signals))
            await asyncio.wait_for(asyncio.Event().wait(), 20)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())
    assert interrupt.requested


async def test_a_signal_before_the_first_step_cancels_at_once() -> None:
    interrupt = Interrupt(grace_s=60)

    async def run() -> None:
        with interrupt.installed():
            asyncio.get_running_loop().create_task(_signal_self())
            await asyncio.wait_for(asyncio.Event().wait(), 20)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())
    assert interrupt.requested


async def test_nothing_cancels_the_taking_down() -> None:
    interrupt = Interrupt(grace_s=0.2)
    with interrupt.installed():
        interrupt.stop_at_boundary()
        await _signal_self()
        with interrupt.closing():
            await _signal_self(2)
            await asyncio.sleep(0.3)
    assert interrupt.requested
