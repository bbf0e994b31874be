"""What scheduling costs in CPU time: microseconds of the core per ticket, events per second of the driver."""

import asyncio
import time

import pytest
from roll_scheduler import (
    Generate,
    Generated,
    Grade,
    Graded,
    RolloutScheduler,
    SchedulerCore,
    SchedulerPolicy,
    ZeroSpread,
)

GROUPS, GROUP_SIZE = 256, 16
TICKETS = GROUPS * GROUP_SIZE

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def policy():
    return SchedulerPolicy(groups_per_batch=GROUPS, group_size=GROUP_SIZE, filters=(ZeroSpread(),))


def run_core(core):
    """One batch through the core: every event of every ticket, in the order a busy driver sees them."""
    core.open_batch()
    todo = []
    while core.room:
        todo += core.admit(0.0)
    for command in todo:
        match command:
            case Generate(ticket=ticket):
                todo += core.generated(ticket, tokens=100, oldest_version=0, truncated=False, now=1.0)
            case Grade(ticket=ticket):
                todo += core.graded(ticket, value=float(ticket.member % 2), now=2.0)
    cut = core.take_batch()
    assert cut is not None and len(cut.deliveries) == GROUPS


@pytest.mark.parametrize(("replicas", "slots"), [(1, TICKETS), (16, 64), (64, 16)])
def test_core_microseconds_per_ticket(benchmark, replicas, slots):
    def new_core():
        return (SchedulerCore(policy(), replicas={f"r{number}": slots for number in range(replicas)}),), {}

    benchmark.pedantic(run_core, setup=new_core, rounds=8, warmup_rounds=1)
    if not benchmark.disabled:
        benchmark.extra_info["microseconds_per_ticket"] = round(benchmark.stats.stats.min / TICKETS * 1e6, 2)


def test_live_driver_events_per_second(benchmark):
    async def generate(ticket, prompt, replica):
        return Generated(completion=None, tokens=100, oldest_version=0, truncated=False)

    async def grade(ticket, prompt, completion):
        return Graded(score=None, value=float(ticket.member % 2))

    async def one_batch():
        async with RolloutScheduler(
            prompts=range(GROUPS),
            generate=generate,
            grade=grade,
            replicas={"a": 1024, "b": 1024},
            policy=policy(),
        ) as scheduler:
            assert len((await scheduler.next_batch()).groups) == GROUPS

    benchmark.pedantic(lambda: asyncio.run(one_batch()), rounds=5, warmup_rounds=1)
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info["events_per_second"] = round(2 * TICKETS / seconds)
        benchmark.extra_info["microseconds_per_ticket"] = round(seconds / TICKETS * 1e6, 2)
