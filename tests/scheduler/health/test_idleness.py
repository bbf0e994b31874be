"""A batch that nothing is done for is an error that names the reason, at the deadline; never a hang."""

import asyncio
import pickle

import pytest
from roll_scheduler import DeadlineExceeded, SchedulerPolicy
from roll_scheduler.health.idleness import Idleness


def policy(**changes):
    return SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, "wait_deadline_s": 50.0, **changes})


def stuck(run_virtual, work, before, *, after=None, **changes):
    """The error of a `next_batch`, and when it came; `before` is done first, `after` half a second later."""

    async def main():
        async with work.scheduler(policy(**changes), replicas={"a": 3, "b": 3}) as scheduler:
            await before(scheduler)
            waiting = asyncio.ensure_future(scheduler.next_batch())
            if after is not None:
                await asyncio.sleep(0.5)
                await after(scheduler)
            with pytest.raises(DeadlineExceeded) as caught:
                await waiting
            return caught.value, asyncio.get_running_loop().time()

    return run_virtual(main())


async def nothing(scheduler):
    pass


def test_replicas_that_all_drain(run_virtual, work):
    async def drain(scheduler):
        scheduler.drain_replica("a")
        scheduler.drain_replica("b")

    error, at = stuck(run_virtual, work, drain)
    assert at == 50.0
    assert "nothing has run for 50 s" in str(error) and "allowed are 50 (wait_deadline_s)" in str(error)
    assert "4 waiting; all replicas drain: 'a', 'b'" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_drain_while_generations_run_counts_from_their_end(run_virtual, work):
    async def drain(scheduler):
        scheduler.drain_replica("a")
        scheduler.drain_replica("b")

    error, at = stuck(run_virtual, work, nothing, after=drain, groups_per_batch=4)
    assert at == 51.0
    assert "2 waiting, 6 ready; all replicas drain" in str(error)


def test_a_pause_that_nobody_ends(run_virtual, work):
    async def pause(scheduler):
        await scheduler.pause("abort")

    error, at = stuck(run_virtual, work, pause)
    assert at == 50.0 and "paused for 50.0 s, resume was not called" in str(error)
    error, at = stuck(run_virtual, work, nothing, after=pause)
    assert at == 50.5 and "4 waiting; paused for 50.0 s" in str(error)


def test_replicas_that_are_to_return_and_do_not(run_virtual, work):
    async def lose(scheduler):
        scheduler.remove_replica("a", "rebooted", returns=True)
        scheduler.remove_replica("b", "rebooted", returns=True)

    error, _ = stuck(run_virtual, work, lose)
    assert "no replica is left, lost: 'a' (rebooted), 'b' (rebooted); to return: 'a', 'b'" in str(error)


def test_what_comes_back_in_time_is_no_error(run_virtual, work):
    async def main():
        async with work.scheduler(policy(), replicas={"a": 4}) as scheduler:
            for wake in ("drain", "pause", "replica"):
                if wake == "drain":
                    scheduler.drain_replica("a")
                elif wake == "pause":
                    await scheduler.pause()
                else:
                    scheduler.remove_replica("a", returns=True)
                waiting = asyncio.ensure_future(scheduler.next_batch())
                await asyncio.sleep(49.0)
                if wake == "drain":
                    scheduler.drain_replica("a", on=False)
                elif wake == "pause":
                    scheduler.resume()
                else:
                    scheduler.add_replica("a", 4)
                assert len((await waiting).groups) == 2
                work.version += 1
                scheduler.publish(work.version)

    run_virtual(main())


def test_time_in_which_no_batch_is_asked_for_does_not_count(run_virtual, work):
    async def main():
        async with work.scheduler(policy(), replicas={"a": 4}) as scheduler:
            for version in range(3):
                assert len((await scheduler.next_batch()).groups) == 2
                await asyncio.sleep(1000.0)
                work.version = version + 1
                scheduler.publish(work.version)

    run_virtual(main())


def test_a_core_that_somebody_else_runs_says_it_when_time_passes(core_run):
    run = core_run(wait_deadline_s=5.0)
    run.core.replica_drains("a", run.now)
    run.admit()
    assert run.take() is None and run.core.next_deadline == 5.0
    run.tick(4.9)
    with pytest.raises(DeadlineExceeded, match="all replicas drain: 'a'"):
        run.tick(0.2)


def test_a_time_that_is_not_known_starts_no_clock():
    clock = Idleness(5.0)
    clock.note(True, float("nan"))
    assert clock.expires_at is None
    clock.note(True, 3.0)
    clock.note(True, 4.0)
    assert (clock.expires_at, clock.seconds(7.0)) == (8.0, 4.0)
    clock.note(False, 4.0)
    assert (clock.expires_at, clock.seconds(9.0)) == (None, 0.0)
