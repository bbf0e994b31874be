"""Pauses around a weight sync: nothing new is sent out, and what runs goes on, is called again, or stops."""

import asyncio

import pytest
from roll_scheduler import DeadlineExceeded, PartialRollouts, SchedulerError, SchedulerPolicy


def test_in_a_pause_nothing_is_sent_out_and_nothing_admitted(core_run):
    run = core_run(replicas={"a": 2})
    run.admit()
    run.do(run.core.pause("keep", run.now))
    run.finish(0, 1)
    assert run.running == {} and run.core.room == 0
    run.do(run.core.replica_up("b", 8, run.now))
    run.admit()
    assert run.running == {}
    run.do(run.core.resume(run.now))
    assert sorted(run.running) == [2, 3]


def test_grading_goes_on_in_a_pause_and_a_complete_batch_is_delivered(core_run):
    run = core_run()
    run.admit()
    run.generate(0, 1, 2, 3)
    run.do(run.core.pause("abort", run.now))
    run.grade(0, 1, 2, 3)
    assert run.take() == [0, 1]


def test_an_aborted_ticket_comes_again_with_its_seed_and_costs_no_retry(core_run):
    run = core_run(retries=0)
    run.admit()
    before = {id: command.ticket for id, command in run.running.items()}
    run.do(run.core.pause("abort", run.now))
    assert run.running == {} and {reason for _, reason in run.aborted} == {"pause"}
    assert run.core.generated(before[0], tokens=1, oldest_version=0, truncated=False, now=0.0) == []
    run.do(run.core.publish(1, run.now))
    run.do(run.core.resume(run.now))
    after = {id: command.ticket for id, command in run.running.items()}
    assert {id: ticket.seed for id, ticket in after.items()} == {id: t.seed for id, t in before.items()}
    assert {ticket.attempt for ticket in after.values()} == {1}
    run.finish(0, 1, 2, 3)
    assert run.take() == [0, 1]
    assert run.value("recalled") == 4 and run.value("failed") == 0
    assert run.core.ledger.ends == {"delivered": 4}


def test_a_second_pause_may_be_stricter_and_one_resume_ends_both(core_run):
    run = core_run(partial=PartialRollouts(stop_at_cut=False))
    run.admit()
    run.do(run.core.pause("keep", run.now))
    run.do(run.core.pause("stop", run.now))
    run.stop(0, 1, tokens=4)
    run.do(run.core.pause("abort", run.now))
    assert run.aborted == [(2, "pause"), (3, "pause")]
    run.do(run.core.resume(run.now))
    assert [run.running[id].ticket.continues for id in range(4)] == [4, 4, 0, 0]


def test_a_resume_without_a_pause_changes_nothing(core_run):
    run = core_run()
    assert run.core.resume(run.now) == []
    run.admit()
    assert len(run.running) == 4


@pytest.mark.parametrize("mode", ["stop", "drain"])
def test_a_mode_that_the_policy_does_not_allow_is_refused(core_run, mode):
    run = core_run()
    with pytest.raises(SchedulerError, match=f"pause: got mode '{mode}', allowed is keep, abort"):
        run.core.pause(mode, run.now)
    assert run.core.room == 2


def test_deadlines_run_on_in_a_pause(core_run):
    run = core_run(generate_deadline_s=5.0)
    run.admit()
    run.do(run.core.pause("keep", run.now))
    run.tick(5.0)
    assert run.core.ledger.failures == {"deadline": 4}
    assert run.running == {}
    run.do(run.core.resume(run.now))
    assert len(run.running) == 4


def test_a_live_pause_waits_until_aborted_calls_have_ended(run_virtual, work):
    async def main():
        ended = []
        plain = work.generate

        async def slow_to_end(ticket, prompt, replica):
            try:
                return await plain(ticket, prompt, replica)
            except asyncio.CancelledError:
                await asyncio.sleep(2)
                ended.append(ticket.id)
                raise

        work.generate = slow_to_end
        work.seconds = lambda ticket: 5.0
        policy = SchedulerPolicy(groups_per_batch=1, group_size=2)
        async with work.scheduler(policy, prompts=1) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(1)
            await scheduler.pause("abort")
            assert ended == [0, 1] and asyncio.get_running_loop().time() == 3.0
            work.version = 1
            scheduler.publish(1)
            scheduler.resume()
            (group,) = (await waiting).groups
            assert [member.generated.oldest_version for member in group.members] == [1, 1]
            assert asyncio.get_running_loop().time() == 8.0

    run_virtual(main())


def test_a_call_that_ignores_its_cancellation_is_named(run_virtual, work):
    async def main():
        async def stubborn(ticket, prompt, replica):
            while True:
                try:
                    await asyncio.sleep(15)
                    raise RuntimeError("ended by itself")
                except asyncio.CancelledError:
                    continue

        work.generate = stubborn
        policy = SchedulerPolicy(groups_per_batch=1, group_size=1)
        scheduler = work.scheduler(policy, prompts=1)
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(1)
        with pytest.raises(DeadlineExceeded, match="generate ticket 0"):
            await scheduler.pause("abort")
        waiting.cancel()
        await asyncio.wait([waiting])
        await scheduler.aclose()

    run_virtual(main())
