"""No more tickets of one environment than it takes are under way."""

import asyncio
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerError, SchedulerPolicy, TicketFailed


def by_parity(core_run, limit, **policy):
    sizes = {"groups_per_batch": 4, "group_size": 2, "concurrency": {"1": limit}, **policy}
    return core_run(core={"tag": lambda group: str(group % 2)}, **sizes)


def test_tickets_of_a_limited_environment_wait_and_others_pass(core_run):
    run = by_parity(core_run, 1)
    run.admit()
    assert sorted(run.running) == [0, 1, 2, 4, 5]
    run.generate(2)
    assert sorted(run.running) == [0, 1, 3, 4, 5]
    run.generate(3)
    assert sorted(run.running) == [0, 1, 4, 5, 6]


def test_a_retry_keeps_its_place_and_an_end_gives_it_back(core_run):
    run = by_parity(core_run, 1, retries=1, min_members=1)
    run.admit()
    for _ in range(2):
        assert 2 in run.running and 3 not in run.running
        ticket = run.running.pop(2).ticket
        run.do(run.core.failed(ticket, "engine", "broken", run.now))
    assert 3 in run.running and 2 not in run.running


def test_dropped_groups_give_their_places_back(core_run):
    run = by_parity(core_run, 2, retries=0)
    run.admit()
    ticket = run.running.pop(2).ticket
    run.do(run.core.failed(ticket, "engine", "broken", run.now))
    assert run.dropped == [(1, "failed")]
    assert {6, 7} <= set(run.running)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(SchedulerError, match=r"concurrency\['shop'\]: got 0, allowed is an integer >= 1"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, concurrency={"shop": 0})


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)), seed=st.integers(0, 99))
def test_limits_hold_live_and_every_prompt_is_served(limits, seed, run_virtual, make_work):
    work, running, most = make_work(), Counter(), Counter()
    plain = work.generate

    async def generate(ticket, prompt, replica):
        tag = "abc"[int(prompt[1:]) % 3]
        running[tag] += 1
        most[tag] = max(most[tag], running[tag])
        try:
            return await plain(ticket, prompt, replica)
        finally:
            running[tag] -= 1

    def sometimes(ticket, replica):
        if ticket.attempt == 0 and (ticket.id + seed) % 4 == 0:
            raise TicketFailed("engine", "broken")

    work.generate, work.generate_faults = generate, sometimes
    work.seconds = lambda ticket: 1.0 + (ticket.id * 7 + seed) % 5

    async def main():
        policy = SchedulerPolicy(groups_per_batch=3, group_size=2, concurrency=limits)
        async with work.scheduler(
            policy, prompts=9, replicas={"a": 4, "b": 4}, tag=lambda prompt: "abc"[int(prompt[1:]) % 3]
        ) as scheduler:
            for _ in range(3):
                assert len((await scheduler.next_batch()).groups) == 3
            assert asyncio.get_running_loop().time() > 0
        assert all(most[tag] <= limit for tag, limit in limits.items())

    run_virtual(main())
