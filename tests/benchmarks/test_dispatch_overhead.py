"""What order, routing and prediction cost: microseconds of the core per ticket."""

import time

import pytest
from roll_scheduler import ROUTERS, Generate, Grade, LengthPredictor, SchedulerCore, SchedulerPolicy

GROUPS, GROUP_SIZE = 256, 16
TICKETS = GROUPS * GROUP_SIZE

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def run_core(core):
    """One batch through the core, with lengths from 100 to 3,100 tokens."""
    core.open_batch()
    todo = []
    while core.room:
        todo += core.admit(0.0)
    now = 0.0
    for command in todo:
        now += 0.01
        match command:
            case Generate(ticket=ticket):
                tokens = 100 + ticket.id * 7919 % 3000
                todo += core.generated(ticket, tokens=tokens, oldest_version=0, truncated=False, now=now)
            case Grade(ticket=ticket):
                todo += core.graded(ticket, value=float(ticket.member % 2), now=now)
    cut = core.take_batch()
    assert cut is not None and len(cut.deliveries) == GROUPS


@pytest.mark.parametrize("order", ["fifo", "longest_first"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_core_microseconds_per_ticket(benchmark, order, router):
    def new_core():
        policy = SchedulerPolicy(groups_per_batch=GROUPS, group_size=GROUP_SIZE, order=order, router=router)
        return (SchedulerCore(policy, replicas={f"r{number}": 64 for number in range(16)}),), {}

    benchmark.pedantic(run_core, setup=new_core, rounds=5, warmup_rounds=1)
    if not benchmark.disabled:
        benchmark.extra_info["microseconds_per_ticket"] = round(benchmark.stats.stats.min / TICKETS * 1e6, 2)


def test_predictor_microseconds_per_call(benchmark):
    def observe_and_predict():
        predictor = LengthPredictor(cap=16_384)
        for number in range(1000):
            predictor.observe(number % 50, "math", 100 + number * 7919 % 3000)
            predictor.expected(number % 50, "math", running=(500.0, 900.0))

    benchmark.pedantic(observe_and_predict, rounds=5, warmup_rounds=1)
    if not benchmark.disabled:
        benchmark.extra_info["microseconds_per_pair"] = round(benchmark.stats.stats.min * 1000, 2)
