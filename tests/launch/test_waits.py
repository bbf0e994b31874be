"""Waits: deadlines, names, and the watchdog's lines."""

import asyncio

import pytest
from roll_launch.waits import WaitExpired, Waits, listed


async def test_a_wait_that_ends_in_time_leaves_nothing_open() -> None:
    waits = Waits()
    async with waits.wait("rollout of step 1", deadline_s=5):
        assert len(waits.lines()) == 1
    assert waits.lines() == []


async def test_an_expired_wait_names_itself_its_deadline_and_what_was_pending() -> None:
    waits = Waits()
    with pytest.raises(
        WaitExpired, match=r"rollout of step 7 did not end within 0\.01 s; pending: group 3 member 2"
    ):
        async with waits.wait("rollout of step 7", deadline_s=0.01, pending=lambda: "group 3 member 2"):
            await asyncio.Event().wait()
    assert waits.lines() == []


async def test_what_was_pending_is_asked_before_the_body_is_unwound() -> None:
    waits = Waits()
    pending = {"actor-1"}

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            pending.clear()

    with pytest.raises(WaitExpired) as caught:
        async with waits.wait("sync", deadline_s=0.01, pending=lambda: ", ".join(sorted(pending))):
            await body()
    assert str(caught.value).endswith("pending: actor-1")
    assert pending == set()


async def test_a_timeout_of_the_body_itself_is_not_taken_for_the_deadline() -> None:
    with pytest.raises(TimeoutError, match="of the body"):
        async with Waits().wait("something", deadline_s=5):
            raise TimeoutError("of the body")


async def test_a_cancelled_wait_stays_cancelled() -> None:
    waits = Waits()

    async def work() -> None:
        async with waits.wait("something", deadline_s=60):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waits.lines() == []


async def test_the_watchdog_reports_a_wait_that_lasts_and_what_it_hangs_on() -> None:
    lines: list[str] = []
    heard = asyncio.Event()

    def report(line: str) -> None:
        lines.append(line)
        heard.set()

    waits = Waits(report_after_s=0.02, report=report)
    async with waits.watch(), waits.wait("update of step 2", deadline_s=30, pending=lambda: "trainer"):
        await asyncio.wait_for(heard.wait(), 10)
    assert "of at most 30 s for update of step 2: trainer" in lines[0]


def test_of_many_names_the_first_are_listed_with_a_count() -> None:
    assert listed({"reward-0", "actor-1"}) == "actor-1, reward-0"
    many = listed(f"actor-{index:03}" for index in range(256))
    assert many.startswith("actor-000, actor-001, ") and many.endswith("actor-007 and 248 more")
