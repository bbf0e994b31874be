"""The live scheduler, in virtual time."""

import asyncio
import itertools
import logging

import pytest
from roll_scheduler import (
    DeadlineExceeded,
    Generated,
    Graded,
    RolloutScheduler,
    SchedulerError,
    SchedulerPolicy,
    SchedulerSnapshot,
    StarvationError,
    TicketFailed,
    TooManyFailures,
    ZeroSpread,
    ticket_seed,
)


def make_policy(**changes):
    return SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, **changes})


def test_batch_holds_prompts_completions_and_scores_in_order(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 10.0 - ticket.id
        async with work.scheduler(make_policy(), run_seed=5) as scheduler:
            batch = await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == 10.0
        assert [(group.id, group.prompt) for group in batch.groups] == [(0, "p0"), (1, "p1")]
        members = batch.groups[1].members
        assert [member.generated.completion for member in members] == ["p1:0", "p1:1"]
        assert [member.graded.score for member in members] == ["score of p1:0", "score of p1:1"]
        assert [member.ticket.seed for member in members] == [ticket_seed(5, 1, 0), ticket_seed(5, 1, 1)]
        assert (batch.version, batch.failures, batch.dropped) == (0, {}, {})
        assert scheduler.ledger() == {"delivered": 4}

    run_virtual(main())


def test_every_ticket_starts_in_order_before_anything_is_awaited(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(groups_per_batch=3), replicas={"a": 6}) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0)
            assert work.started == []
            await asyncio.sleep(0)
            assert [ticket.id for ticket, _ in work.started] == [0, 1, 2, 3, 4, 5]
            await waiting

    run_virtual(main())


def test_slots_bound_what_runs_on_a_replica(run_virtual, work):
    async def main():
        policy = make_policy(groups_per_batch=8)
        async with work.scheduler(policy, replicas={"a": 3, "b": 2}) as scheduler:
            await scheduler.next_batch()
        assert work.most == {"a": 3, "b": 2}

    run_virtual(main())


def test_grading_overlaps_with_generation(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 1.0 + ticket.id
        work.grade_seconds = lambda ticket: 2.0
        async with work.scheduler(make_policy()) as scheduler:
            await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == 6.0

    run_virtual(main())


def test_synchronous_scheduler_runs_nothing_between_batches(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy()) as scheduler:
            for version in range(3):
                batch = await scheduler.next_batch()
                assert (batch.version, [group.id for group in batch.groups]) == (
                    version,
                    [2 * version, 2 * version + 1],
                )
                started = len(work.started)
                await asyncio.sleep(100.0)
                work.version = version + 1
                scheduler.publish(version + 1)
                await asyncio.sleep(100.0)
                assert len(work.started) == started
                assert scheduler.pending() == []
                assert scheduler.snapshot().first_group == 2 * version + 2

    run_virtual(main())


def test_one_step_of_staleness_overlaps_training_with_generation(run_virtual, work):
    async def main():
        loop = asyncio.get_running_loop()
        work.seconds = lambda ticket: 10.0
        async with work.scheduler(make_policy(max_staleness=1), replicas={"a": 4}) as scheduler:
            ages = []
            for version in range(5):
                batch = await scheduler.next_batch()
                ages += [
                    batch.version - member.generated.oldest_version
                    for group in batch.groups
                    for member in group.members
                ]
                await asyncio.sleep(10.0)
                work.version = version + 1
                scheduler.publish(version + 1)
            assert loop.time() == 60.0, "a synchronous run takes 100 s"
            assert set(ages) == {0, 1}

    run_virtual(main())


def test_failed_generation_is_retried_on_another_replica_with_the_same_seed(run_virtual, work):
    def fail_on_a(ticket, replica):
        if replica == "a":
            raise TicketFailed("engine", "broken")

    async def main():
        work.generate_faults = fail_on_a
        async with work.scheduler(make_policy(), replicas={"a": 4, "b": 4}) as scheduler:
            batch = await scheduler.next_batch()
        assert batch.failures == {"engine": 2}
        members = [member for group in batch.groups for member in group.members]
        assert [member.ticket.attempt for member in members] == [1, 0, 1, 0]
        seeds = {
            ticket.id: {t.seed for t, _ in work.started if t.id == ticket.id} for ticket, _ in work.started
        }
        assert all(len(of_ticket) == 1 for of_ticket in seeds.values())

    run_virtual(main())


def test_group_goes_on_without_a_member_that_keeps_failing(run_virtual, work):
    def fail_member_0(ticket, replica):
        if ticket.member == 0:
            raise TicketFailed("engine", "broken")

    async def main():
        work.generate_faults = fail_member_0
        async with work.scheduler(make_policy(group_size=3)) as scheduler:
            batch = await scheduler.next_batch()
        assert [[member.ticket.member for member in group.members] for group in batch.groups] == [
            [1, 2],
            [1, 2],
        ]
        assert batch.failures == {"engine": 4}
        assert scheduler.ledger() == {"failed": 2, "delivered": 4}

    run_virtual(main())


def test_group_with_too_few_members_is_replaced_by_the_next_prompt(run_virtual, work):
    def fail_group_0(ticket):
        if ticket.group == 0:
            raise TicketFailed("grader", "broken")

    async def main():
        work.grade_faults = fail_group_0
        async with work.scheduler(make_policy()) as scheduler:
            batch = await scheduler.next_batch()
        assert [group.prompt for group in batch.groups] == ["p1", "p2"]
        assert batch.dropped == {"failed": 1}

    run_virtual(main())


def test_hanging_generation_is_cancelled_at_its_deadline_and_retried(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 10_000.0 if ticket.id == 3 and ticket.attempt == 0 else 1.0
        policy = make_policy(generate_deadline_s=30.0)
        async with work.scheduler(policy, replicas={"a": 4, "b": 4}) as scheduler:
            batch = await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == 31.0
        assert batch.failures == {"deadline": 1}
        assert [ticket.id for ticket in work.cancelled] == [3]
        assert batch.groups[1].members[1].ticket.attempt == 1

    run_virtual(main())


def test_hanging_grader_is_cancelled_at_its_deadline_and_asked_again(run_virtual, work):
    async def main():
        work.grade_seconds = lambda ticket: 10_000.0 if ticket.id == 3 and ticket.attempt == 0 else 1.0
        async with work.scheduler(make_policy(grade_deadline_s=5.0)) as scheduler:
            batch = await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == 7.0
        assert batch.failures == {"deadline": 1}
        assert len(work.started) == 4
        assert len(work.graded) == 5

    run_virtual(main())


def test_deadlines_hold_while_no_batch_is_asked_for(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 10_000.0 if ticket.id == 7 and ticket.attempt == 0 else 1.0
        policy = make_policy(max_staleness=1, generate_deadline_s=30.0)
        async with work.scheduler(policy) as scheduler:
            await scheduler.next_batch()
            await asyncio.sleep(100.0)
            assert [ticket.id for ticket in work.cancelled] == [7]
            assert scheduler.pending() == []

    run_virtual(main())


def test_filtered_groups_are_refilled(run_virtual, work):
    async def main():
        work.values = lambda ticket: float(ticket.member) if ticket.group % 2 else 1.0
        async with work.scheduler(make_policy(filters=(ZeroSpread(),))) as scheduler:
            batch = await scheduler.next_batch()
        assert [group.id for group in batch.groups] == [1, 3]
        assert batch.dropped == {"filter:zero_spread": 2}

    run_virtual(main())


def test_starvation_by_a_filter_ends_with_an_error_and_no_task(run_virtual, work):
    async def main():
        work.values = lambda ticket: 1.0
        scheduler = work.scheduler(make_policy(filters=(ZeroSpread(),), max_refills=5))
        with pytest.raises(StarvationError, match="zero_spread"):
            await scheduler.next_batch()
        with pytest.raises(SchedulerError, match="closed"):
            await scheduler.next_batch()

    run_virtual(main())


def test_too_many_failures_end_with_an_error_and_no_task(run_virtual, work):
    def fail(ticket, replica):
        raise TicketFailed("engine", "connection refused")

    async def main():
        work.generate_faults = fail
        scheduler = work.scheduler(make_policy(max_failures=20))
        with pytest.raises(TooManyFailures, match="connection refused") as caught:
            await scheduler.next_batch()
        assert caught.value.counts["engine"] > 20

    run_virtual(main())


def test_stale_group_is_dropped_and_counted(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 50.0 if ticket.group == 1 and ticket.member == 1 else 1.0
        async with work.scheduler(make_policy(max_staleness=1)) as scheduler:
            await scheduler.next_batch()
            for version in (1, 2):
                work.version = version
                scheduler.publish(version)
            assert {ticket.group for ticket in work.cancelled} == set()
            await asyncio.sleep(0)
            assert {ticket.group for ticket in work.cancelled} == {1}
            batch = await scheduler.next_batch()
        assert batch.dropped["stale"] >= 1
        assert all(m.generated.oldest_version >= 1 for group in batch.groups for m in group.members)

    run_virtual(main())


def test_tickets_of_a_removed_replica_run_exactly_once_elsewhere(run_virtual, work, caplog):
    async def main():
        async with work.scheduler(make_policy(groups_per_batch=5), replicas={"a": 5, "b": 5}) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0.5)
            moved = [item.ticket.id for item in scheduler.pending() if item.replica == "a"]
            scheduler.remove_replica("a", "node lost")
            batch = await waiting
        assert len(moved) == 5
        for ticket_id in moved:
            assert [(t.attempt, replica) for t, replica in work.started if t.id == ticket_id] == [
                (0, "a"),
                (1, "b"),
            ]
        assert sum(len(group.members) for group in batch.groups) == 10
        assert batch.failures == {}
        assert scheduler.metrics()["scheduler/redispatched"] == 5

    with caplog.at_level(logging.WARNING, logger="roll_scheduler"):
        run_virtual(main())
    assert "replica 'a' left (node lost)" in caplog.text


def test_removal_of_the_last_replica_ends_the_wait_with_an_error(run_virtual, work):
    async def main():
        scheduler = work.scheduler(make_policy())
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(0.5)
        scheduler.remove_replica("a", "node lost")
        with pytest.raises(SchedulerError, match=r"'a' \(node lost\)"):
            await waiting

    run_virtual(main())


def test_added_replica_takes_waiting_tickets(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(), replicas={"a": 1}) as scheduler:
            scheduler.publish(0)
            scheduler.add_replica("c", 1)
            assert work.started == [] and scheduler.snapshot().first_group == 0
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0.5)
            scheduler.add_replica("b", 2)
            await waiting
            assert asyncio.get_running_loop().time() == 1.5

    run_virtual(main())


def test_exhausted_prompts_give_a_smaller_batch_and_then_an_empty_one(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(), prompts=3) as scheduler:
            sizes = [len((await scheduler.next_batch()).groups) for _ in range(3)]
        assert sizes == [2, 1, 0]

    run_virtual(main())


def test_resumed_run_continues_with_the_next_prompt_occurrence(run_virtual, work):
    async def main():
        resume = SchedulerSnapshot(first_group=10, version=5)
        async with work.scheduler(make_policy(), resume=resume, run_seed=3) as scheduler:
            work.version = 5
            batch = await scheduler.next_batch()
        assert batch.version == 5
        assert [group.id for group in batch.groups] == [10, 11]
        assert batch.groups[0].members[1].ticket.seed == ticket_seed(3, 10, 1)

    run_virtual(main())


def test_resume_takes_up_what_was_pending_and_nothing_that_had_ended(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 100.0 if ticket.group in (0, 2) else 1.0
        policy = make_policy(groups_per_batch=2, max_staleness=2, group_size=1)
        async with work.scheduler(policy) as scheduler:
            first = await scheduler.next_batch()
            scheduler.publish(1)
            snapshot = scheduler.snapshot()
        assert [group.id for group in first.groups] == [1, 3]
        assert (snapshot.first_group, snapshot.resolved, snapshot.version) == (0, (1, 3), 1)
        work.seconds = lambda ticket: 1.0
        work.version = 1
        async with work.scheduler(policy, resume=snapshot) as scheduler:
            batches = [await scheduler.next_batch() for _ in range(2)]
        assert [group.id for batch in batches for group in batch.groups] == [0, 2, 4, 5]
        assert [group.prompt for group in batches[0].groups] == ["p0", "p2"]
        assert scheduler.ledger()["delivered"] == 6

    run_virtual(main())


def test_tickets_wait_for_a_replica_that_returns(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(), replicas={"a": 8}) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0.5)
            scheduler.remove_replica("a", "died", returns=True)
            await asyncio.sleep(20.0)
            assert not waiting.done() and {late.state for late in scheduler.pending()} == {"waiting"}
            scheduler.add_replica("a", 8)
            batch = await waiting
        assert [member.ticket.attempt for group in batch.groups for member in group.members] == [1] * 4
        assert scheduler.metrics()["scheduler/redispatched"] == 4
        assert batch.failures == {}

    run_virtual(main())


def test_a_replica_that_does_not_return_after_all_ends_the_wait(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(), replicas={"a": 8, "b": 1}) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0.5)
            scheduler.remove_replica("a", "died", returns=True)
            scheduler.add_replica("a", 8)
            scheduler.remove_replica("a", "died again")
            scheduler.remove_replica("b", "left")
            with pytest.raises(SchedulerError, match="no replica is left"):
                await waiting

    run_virtual(main())


def test_cancelled_wait_leaves_no_task(run_virtual, work):
    async def main():
        scheduler = work.scheduler(make_policy(max_staleness=1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.next_batch(), timeout=0.5)
        assert len(work.cancelled) == 8
        assert scheduler.ledger() == {"closed": 8}

    run_virtual(main())


def test_closing_ends_a_wait_and_every_task(run_virtual, work):
    async def main():
        scheduler = work.scheduler(make_policy())
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(0.5)
        await scheduler.aclose()
        await scheduler.aclose()
        with pytest.raises(SchedulerError, match="was closed while it waited"):
            await waiting
        assert len(work.cancelled) == 4

    run_virtual(main())


class Stubborn:
    """Generation that ignores its first cancellations."""

    def __init__(self, cancellations):
        self.left = cancellations

    async def generate(self, ticket, prompt, replica):
        while True:
            try:
                await asyncio.sleep(1000.0)
                return Generated(completion="", tokens=0, oldest_version=0, truncated=False)
            except asyncio.CancelledError:
                self.left -= 1
                if self.left < 0:
                    raise


def stubborn_scheduler(stubborn, grade):
    return RolloutScheduler(
        prompts=["p"],
        generate=stubborn.generate,
        grade=grade,
        replicas={"a": 1},
        policy=SchedulerPolicy(groups_per_batch=1, group_size=1, retries=0, generate_deadline_s=2000.0),
        clock=asyncio.get_running_loop().time,
    )


def test_closing_does_not_wait_for_ever_for_a_task_that_ignores_its_cancellation(run_virtual, work):
    async def main():
        scheduler = stubborn_scheduler(Stubborn(1), work.grade)
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(1.0)
        with pytest.raises(DeadlineExceeded, match="generate ticket 0"):
            await scheduler.aclose()
        assert asyncio.get_running_loop().time() == 11.0
        with pytest.raises(SchedulerError, match="closed"):
            await waiting
        await asyncio.sleep(2000.0)

    run_virtual(main())


def test_stuck_task_does_not_hide_the_error_of_the_body(run_virtual, work):
    async def main():
        with pytest.raises(ZeroDivisionError):
            async with stubborn_scheduler(Stubborn(1), work.grade) as scheduler:
                waiting = asyncio.ensure_future(scheduler.next_batch())
                await asyncio.sleep(1.0)
                raise ZeroDivisionError
        with pytest.raises(SchedulerError, match="closed"):
            await waiting
        with pytest.raises(DeadlineExceeded, match="generate ticket 0"):
            async with stubborn_scheduler(Stubborn(1), work.grade) as scheduler:
                waiting = asyncio.ensure_future(scheduler.next_batch())
                await asyncio.sleep(1.0)
        with pytest.raises(SchedulerError, match="closed"):
            await waiting
        await asyncio.sleep(3000.0)

    run_virtual(main())


def test_second_waiter_is_refused(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy()) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(0.5)
            with pytest.raises(SchedulerError, match="another call is waiting"):
                await scheduler.next_batch()
            assert len((await waiting).groups) == 2

    run_virtual(main())


def test_bug_in_a_function_ends_the_run_with_its_cause(run_virtual, work):
    def fail(ticket, replica):
        raise KeyError("kwargs")

    async def main():
        work.generate_faults = fail
        scheduler = work.scheduler(make_policy())
        with pytest.raises(SchedulerError, match=r"generate raised KeyError: 'kwargs' \(ticket 0") as caught:
            await scheduler.next_batch()
        assert isinstance(caught.value.__cause__, KeyError)

    run_virtual(main())


def test_wrong_result_of_a_function_is_named(run_virtual, work):
    async def generate(ticket, prompt, replica):
        return "text"

    async def grade(ticket, prompt, completion):
        return 1.0

    async def main():
        work.generate, kept = generate, work.generate
        with pytest.raises(SchedulerError, match="generate returned str for ticket 0, not Generated"):
            await work.scheduler(make_policy()).next_batch()
        work.generate, work.grade = kept, grade
        with pytest.raises(SchedulerError, match="grade returned float for ticket 0, not Graded"):
            await work.scheduler(make_policy()).next_batch()

    run_virtual(main())


class Broken:
    name = "broken"

    def keep(self, values, truncated):
        raise ZeroDivisionError("in the filter")


def test_errors_of_filters_and_prompts_come_through(run_virtual, work):
    def prompts():
        yield "p0"
        raise OSError("file is gone")

    async def main():
        with pytest.raises(ZeroDivisionError, match="in the filter"):
            await work.scheduler(make_policy(filters=(Broken(),))).next_batch()
        scheduler = RolloutScheduler(
            prompts=prompts(),
            generate=work.generate,
            grade=work.grade,
            replicas={"a": 4},
            policy=make_policy(),
        )
        with pytest.raises(OSError, match="file is gone"):
            await scheduler.next_batch()

    run_virtual(main())


def test_generation_that_is_cancelled_from_inside_is_a_failure(run_virtual, work):
    def cancel_first(ticket, replica):
        if ticket.attempt == 0 and ticket.id == 0:
            raise asyncio.CancelledError

    async def main():
        work.generate_faults = cancel_first
        async with work.scheduler(make_policy()) as scheduler:
            batch = await scheduler.next_batch()
        assert batch.failures == {"cancelled": 1}
        assert sum(len(group.members) for group in batch.groups) == 4

    run_virtual(main())


def test_reward_without_a_verdict_is_a_failure(run_virtual, work):
    async def main():
        work.values = lambda ticket: float("nan") if ticket.member == 2 else 1.0
        async with work.scheduler(make_policy(group_size=3)) as scheduler:
            batch = await scheduler.next_batch()
        assert batch.failures == {"value": 4}
        assert [len(group.members) for group in batch.groups] == [2, 2]

    run_virtual(main())


def test_other_tasks_get_turns_while_thousands_of_tickets_start(run_virtual, work):
    async def main():
        async with work.scheduler(
            make_policy(groups_per_batch=640, group_size=4), prompts=1000, replicas={"a": 4096}
        ) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            started = [0]
            while started[-1] < 2560:
                await asyncio.sleep(0)
                started.append(len(work.started))
            assert max(after - before for before, after in itertools.pairwise(started)) == 512
            assert [ticket.id for ticket, _ in work.started] == list(range(2560))
            assert len((await waiting).groups) == 640

    run_virtual(main())


def test_closing_while_tickets_are_being_started_leaves_none(run_virtual, work):
    async def main():
        scheduler = work.scheduler(
            make_policy(groups_per_batch=640, group_size=4), prompts=1000, replicas={"a": 4096}
        )
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(0)
        await scheduler.aclose()
        with pytest.raises(SchedulerError, match="closed"):
            await waiting
        assert scheduler.pending_count() == 0
        assert len(work.started) <= 512

    run_virtual(main())


def test_pending_tells_a_watchdog_what_is_waited_for(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 1.0 + 100.0 * ticket.id
        async with work.scheduler(make_policy(groups_per_batch=1)) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(50.0)
            (item,) = scheduler.pending()
            assert (item.ticket.id, item.state, item.age_s, item.replica) == (1, "running", 50.0, "a")
            assert scheduler.metrics()["scheduler/oldest_running_s"] == 50.0
            await waiting

    run_virtual(main())


async def test_it_runs_on_a_real_loop_and_clock():
    async def generate(ticket, prompt, replica):
        return Generated(completion=prompt, tokens=1, oldest_version=0, truncated=False)

    async def grade(ticket, prompt, completion):
        return Graded(score=None, value=float(ticket.member))

    policy = SchedulerPolicy(groups_per_batch=4, group_size=4)
    scheduler = RolloutScheduler(
        prompts=range(8), generate=generate, grade=grade, replicas={"a": 3, "b": 3}, policy=policy
    )
    async with scheduler:
        assert [len((await scheduler.next_batch()).groups) for _ in range(3)] == [4, 4, 0]


def test_the_snapshot_of_a_closed_scheduler_is_that_of_the_moment_it_closed(run_virtual, work):
    async def main():
        scheduler = work.scheduler(make_policy(max_staleness=1))
        async with scheduler:
            await scheduler.next_batch()
            before = scheduler.snapshot()
        assert (before.first_group, before.ends) == (2, {"delivered": 4})
        assert scheduler.snapshot() == before
        assert scheduler.ledger()["closed"] > 0

    run_virtual(main())
