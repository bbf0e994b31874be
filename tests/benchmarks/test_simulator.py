"""What simulating costs in CPU time: tickets a second, and how much of it is the scheduler's core."""

import time
from dataclasses import replace

import pytest
from roll_scheduler import Generate, Grade, SchedulerCore
from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    LognormalLengths,
    Setting,
    Trainer,
    Workload,
    queue,
    run_policy,
    simulate,
)

GROUPS, GROUP_SIZE, STEPS = 256, 16, 4
TICKETS = GROUPS * GROUP_SIZE * STEPS
ENGINE = EngineModel(slots=64, base_s=0.010, sequence_s=50e-6)

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def setting(replicas):
    return Setting(
        workload=Workload(LognormalLengths(TRACES["A"])),
        engines=(ENGINE,) * replicas,
        groups_per_batch=GROUPS,
        group_size=GROUP_SIZE,
    )


def report(benchmark):
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info["tickets_per_second"] = round(TICKETS / seconds)
        benchmark.extra_info["microseconds_per_ticket"] = round(seconds / TICKETS * 1e6, 1)


@pytest.mark.parametrize("replicas", [16, 64, 1024])
def test_tickets_of_the_core_a_second(benchmark, replicas):
    what = setting(replicas)
    benchmark.pedantic(lambda: simulate(what, what.policy(), steps=STEPS), rounds=3, warmup_rounds=1)
    report(benchmark)


def test_tickets_of_a_plain_queue_a_second(benchmark):
    what = setting(16)
    benchmark.pedantic(lambda: queue(what, steps=STEPS), rounds=3, warmup_rounds=1)
    report(benchmark)


def test_tickets_of_an_elastic_run_a_second(benchmark):
    """Longest first, with devices that change sides and tickets that move."""
    what = replace(setting(16), trainer=Trainer(sample_s=0.42, switch_s=5.0))
    benchmark.pedantic(
        lambda: run_policy("core-elastic", what, steps=STEPS, trainer_devices=8), rounds=2, warmup_rounds=1
    )
    report(benchmark)


def test_core_overhead_of_the_same_tickets(benchmark):
    """The core's part of it: the same number of events, without engines."""
    what = setting(16)

    def run():
        core = SchedulerCore(what.policy(), replicas={f"replica {index}": 64 for index in range(16)})
        for version in range(STEPS):
            core.open_batch()
            todo = []
            while core.room:
                todo += core.admit(0.0)
            for command in todo:
                match command:
                    case Generate(ticket=ticket):
                        todo += core.generated(
                            ticket, tokens=9, oldest_version=version, truncated=False, now=1.0
                        )
                    case Grade(ticket=ticket):
                        todo += core.graded(ticket, value=float(ticket.member % 2), now=2.0)
            assert core.take_batch() is not None
            core.publish(version + 1, 3.0)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    report(benchmark)
