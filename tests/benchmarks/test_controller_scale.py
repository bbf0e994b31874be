"""The driver over fake roles, small: that the benchmark of docs/controller.md measures what it says.

`benchmarks/controller_scale.py` gives the numbers; here nothing depends on a clock.
"""

import asyncio
import time

import numpy as np
import pytest
import ray
from controller_roles import TRAINED_TOKENS, FakeRayRuntime
from controller_scale import GROUP_SIZE, PHASES, Scale, alone, measure, planned
from roll_launch.pipelines import specs
from roll_launch.roles import ScoredRollout
from roll_rollout import GenerateRequest, SamplingParams


def scale(**changes):
    small = {"actors": 16, "samples": 8 * GROUP_SIZE, "tokens": 32768, "steps": 2, "arrivals_per_s": 1e4}
    return Scale(**{"runtime": "local", **small, **changes})


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("actors", [16, 64])
def test_driver_of_fake_engines(benchmark, actors):
    steps = benchmark.pedantic(lambda: asyncio.run(measure(scale(actors=actors))), rounds=1)
    assert len(steps) == 2
    assert all(step.phases.keys() >= set(PHASES) for step in steps)
    if not benchmark.disabled:
        cost = min(step.cpu_s for step in steps) / scale().samples * 1e6
        benchmark.extra_info["microseconds_per_sample"] = round(cost, 1)


async def test_what_the_fakes_take_by_themselves_is_measured_too():
    assert await alone(scale()) > 0


@pytest.mark.slow
async def test_through_ray_the_driver_holds_references_and_the_trainer_gets_every_token():
    tokens = 2048  # 16 KiB a completion: Ray would send so little to the driver by default.
    _, plan = planned(scale(runtime="ray", tokens=tokens))
    runtime = FakeRayRuntime(tokens, 0.0, processes=1, object_store_bytes=128 << 20)
    try:
        trainer = await runtime.start_trainer(specs.policy_trainer(plan, processors=1, checkpoint=None))
        actor = await runtime.start_actor("actor-0", specs.actor(plan, processors=1))
        request = GenerateRequest(
            id="0", prompt_ids=np.array([1, 2]), seed=7, sampling=SamplingParams(max_tokens=tokens)
        )
        rollout = await actor.generate(request)
        assert rollout.tokens == tokens
        for _ in range(100):  # the owner hears of the location a little later
            where = ray.experimental.get_object_locations([rollout.completion])[rollout.completion]
            if where["node_ids"]:
                break
            await asyncio.sleep(0.1)
        assert where["node_ids"] and where["object_size"] > tokens * 8, "it lies in a node's object store"
        trained = await trainer.policy_step(
            [ScoredRollout(completion=rollout.completion, reward=1.0, group=0)] * 3
        )
        assert trained.metrics[TRAINED_TOKENS] == 3.0 * tokens
    finally:
        await runtime.close()
