"""Speculative groups and members: the quickest make the batch, and no prompt is lost to that."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_scheduler import (
    OverProvision,
    SchedulerError,
    SchedulerPolicy,
    StarvationError,
    TicketFailed,
    ZeroSpread,
    ticket_seed,
)

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def make_policy(extra: OverProvision, **changes) -> SchedulerPolicy:
    return SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, "over_provision": extra, **changes})


def vector(name: str, case: str) -> dict:
    cases = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return next(each for each in cases if each["name"].startswith(case))


def ids(batch) -> list[int]:
    return [group.id for group in batch.groups]


def test_a_batch_takes_the_groups_and_members_that_are_quickest(run_virtual, work):
    """Redundant environments: need 3 groups x 2 of 4 groups x 3."""
    case = vector("redundant_env_rollout", "need 3 groups x 2")
    names = sorted(case["inputs"]["finish_times"])

    async def main():
        work.seconds = lambda ticket: case["inputs"]["finish_times"][names[ticket.group]][ticket.member]
        policy = make_policy(OverProvision(groups=1, members=1), groups_per_batch=3)
        async with work.scheduler(policy, prompts=4) as scheduler:
            batch = await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == case["expected"]["stop_time"]
        kept = {names[group.id]: [member.ticket.member for member in group.members] for group in batch.groups}
        assert kept == case["expected"]["kept_members"]
        assert batch.dropped == {"surplus": 1}
        assert scheduler.ledger() == {"delivered": 6, "surplus": 3 + 3}

    run_virtual(main())


def test_a_short_round_defers_what_it_does_without(run_virtual, work):
    """RollPacker's example: 3 prompts x 3 responses of 4 x 4."""
    case = vector("rollpacker_tail_batching", "one short round")
    names = sorted(case["inputs"]["response_finish_times"])
    expected = case["expected"]

    async def main():
        work.seconds = lambda ticket: case["inputs"]["response_finish_times"][names[ticket.group]][
            ticket.member
        ]
        policy = make_policy(OverProvision(groups=1, members=1, defer=True), groups_per_batch=3, group_size=3)
        async with work.scheduler(policy, prompts=4) as scheduler:
            batch = await scheduler.next_batch()
            assert asyncio.get_running_loop().time() == expected["round_time"]
            assert scheduler.metrics()["scheduler/waiting_long_groups"] == len(expected["deferred"])
            snapshot = scheduler.snapshot()
            rest = await scheduler.next_batch()
        kept = {names[group.id]: [member.ticket.member for member in group.members] for group in batch.groups}
        assert kept == expected["kept_response_indices"]
        assert [names[group] for group in snapshot.deferred] == expected["deferred"]
        assert [names[group.id] for group in rest.groups] == expected["deferred"]
        # A long round is not speculative, and a prompt keeps its seeds.
        assert [member.ticket.member for member in rest.groups[0].members] == [0, 1, 2]
        assert rest.groups[0].members[1].ticket.seed == ticket_seed(0, rest.groups[0].id, 1)

    run_virtual(main())


def test_four_short_rounds_are_followed_by_a_long_one(run_virtual, work):
    case = vector("rollpacker_tail_batching", "round kinds")
    size = 8

    async def main():
        work.seconds = lambda ticket: 1.0 + ticket.group % 7
        policy = make_policy(OverProvision(groups=size // 4, defer=True), groups_per_batch=size, group_size=1)
        kinds = []
        async with work.scheduler(policy, prompts=10_000) as scheduler:
            for _ in case["expected"]["schedule"]:
                before = scheduler.metrics()["scheduler/deferred_groups"]
                await scheduler.next_batch()
                deferred = scheduler.metrics()["scheduler/deferred_groups"] - before
                kinds.append("short" if deferred == size // 4 else "long")
        assert kinds == case["expected"]["schedule"]

    run_virtual(main())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seconds=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    groups=st.integers(0, 3),
    members=st.integers(0, 2),
    size=st.integers(1, 3),
    slots=st.integers(1, 12),
)
def test_with_tail_rounds_every_prompt_is_trained_on_exactly_once(
    run_virtual, make_work, seconds, groups, members, size, slots
):
    async def main():
        work = make_work()
        work.seconds = lambda ticket: float(seconds[ticket.group] * (1 + ticket.member))
        extra = OverProvision(groups=groups or 1, members=members, defer=True)
        policy = make_policy(extra, groups_per_batch=3, group_size=size)
        trained: Counter[int] = Counter()
        async with work.scheduler(policy, prompts=len(seconds), replicas={"a": slots}) as scheduler:
            while (batch := await scheduler.next_batch()).groups:
                assert all(len(group.members) == size for group in batch.groups)
                trained.update(ids(batch))
                work.version = batch.version + 1
                scheduler.publish(work.version)
        assert trained == Counter(range(len(seconds)))
        ends = scheduler.ledger()
        assert ends["delivered"] == size * len(seconds)
        assert set(ends) <= {"delivered", "surplus", "deferred"}

    run_virtual(main())


def test_deferred_groups_survive_a_resume(run_virtual, make_work):
    policy = make_policy(OverProvision(groups=1, defer=True), group_size=1)

    async def main():
        work = make_work()
        work.seconds = lambda ticket: 90.0 if ticket.group in (0, 3) else 1.0 + ticket.group
        async with work.scheduler(policy, prompts=9) as scheduler:
            first = await scheduler.next_batch()
            snapshot = scheduler.snapshot()
        assert (ids(first), snapshot.deferred, snapshot.first_group) == ([1, 2], (0,), 0)
        trained = ids(first)
        async with work.scheduler(policy, prompts=9, resume=snapshot) as scheduler:
            while (batch := await scheduler.next_batch()).groups:
                trained += ids(batch)
        assert sorted(trained) == list(range(9))
        assert trained.index(0) > 2

    run_virtual(main())


def test_an_asynchronous_run_goes_on_with_what_a_batch_did_without(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: {0: 1.25, 1: 90.0}.get(ticket.group, 1.0 + ticket.group / 10)
        policy = make_policy(OverProvision(groups=1), group_size=1, max_staleness=1)
        async with work.scheduler(policy) as scheduler:
            first = await scheduler.next_batch()
            assert scheduler.metrics()["scheduler/outstanding_groups"] == 5 - 2
            work.version = 1
            scheduler.publish(1)
            second = await scheduler.next_batch()
            work.version = 2
            scheduler.publish(2)
            third = await scheduler.next_batch()
            assert 1 in {late.ticket.group for late in scheduler.pending()}
        assert (ids(first), ids(second), ids(third)) == ([0, 2], [3, 4], [5, 6])
        assert "surplus" not in scheduler.ledger()

    run_virtual(main())


def test_nothing_speculative_runs_while_a_synchronous_run_trains(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(OverProvision(groups=2, members=1))) as scheduler:
            await scheduler.next_batch()
            started = len(work.started)
            await asyncio.sleep(30.0)
            scheduler.publish(1)
            await asyncio.sleep(30.0)
            assert len(work.started) == started and not work.running.total()

    run_virtual(main())


def test_extra_members_stand_in_for_those_that_fail(run_virtual, work):
    def broken(ticket, replica):
        if ticket.member == 0:
            raise TicketFailed("engine", "broken")

    async def main():
        work.generate_faults = broken
        policy = make_policy(OverProvision(members=1), retries=0)
        async with work.scheduler(policy) as scheduler:
            batch = await scheduler.next_batch()
        assert [[member.ticket.member for member in group.members] for group in batch.groups] == [[1, 2]] * 2

    run_virtual(main())


def test_filters_see_the_members_that_are_kept_and_refused_groups_are_not_deferred(run_virtual, work):
    async def main():
        work.values = lambda ticket: 1.0 if ticket.group == 0 else float(ticket.member % 2)
        policy = make_policy(OverProvision(groups=1, members=1, defer=True), filters=(ZeroSpread(),))
        async with work.scheduler(policy, prompts=6) as scheduler:
            trained = []
            while (batch := await scheduler.next_batch()).groups:
                trained += ids(batch)
        assert sorted(trained) == [1, 2, 3, 4, 5]

    run_virtual(main())


def test_surplus_never_looks_like_starvation(run_virtual, work):
    async def main():
        policy = make_policy(OverProvision(groups=2), max_refills=0)
        async with work.scheduler(policy) as scheduler:
            for _ in range(5):
                assert len((await scheduler.next_batch()).groups) == 2
        work.values = lambda ticket: 0.0
        policy = make_policy(OverProvision(groups=2), max_refills=1, filters=(ZeroSpread(),))
        async with work.scheduler(policy) as scheduler:
            with pytest.raises(StarvationError, match="zero_spread"):
                await scheduler.next_batch()

    run_virtual(main())


def test_the_bias_towards_short_completions_is_measured(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 100.0 if ticket.group == 2 else 4.0
        async with work.scheduler(make_policy(OverProvision(groups=1))) as scheduler:
            await scheduler.next_batch()
            metrics = scheduler.metrics()
        assert metrics["scheduler/kept_s"] == 4.0
        assert metrics["scheduler/aborted_s"] == 4.0
        assert (metrics["scheduler/kept"], metrics["scheduler/aborted"]) == (4, 2)

    run_virtual(main())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: OverProvision(), "0 groups and 0 members"),
        (lambda: OverProvision(groups=-1), r"OverProvision\.groups: got -1"),
        (lambda: OverProvision(members=1.5), r"OverProvision\.members: got 1\.5"),
        (lambda: make_policy(OverProvision(groups=3)), "at most groups_per_batch, 2"),
        (
            lambda: make_policy(OverProvision(groups=1, defer=True), max_staleness=1),
            "allowed is max_staleness 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(made, said):
    with pytest.raises(SchedulerError, match=said):
        made()
