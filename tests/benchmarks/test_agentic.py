"""What episodes cost in CPU time: a thousand at once with simulated latencies, and memory per live token."""

import asyncio
import gc
import random
import time
import tracemalloc

import numpy as np
import pytest
from roll_agentic import (
    EpisodeState,
    GroupPlan,
    History,
    Segment,
    Turn,
    episode_rows,
    run_episode,
    run_groups,
)

EPISODES, TURNS, TOKENS = 1000, 10, 40

pytestmark = pytest.mark.benchmark(timer=time.process_time)


class World:
    """Answers after a while, until its turns are over."""

    async def reset(self, *, seed: int):
        self.chance, self.left = random.Random(seed), TURNS
        return "start", {}

    async def step(self, action: str, /):
        await asyncio.sleep(self.chance.uniform(0.0, 0.05))
        self.left -= 1
        return "go on", 0.1, self.left == 0, False, {}


class Model:
    """Samples after a while."""

    def __init__(self) -> None:
        self.chance = random.Random(1)

    async def act(self, state: EpisodeState) -> Turn:
        await asyncio.sleep(self.chance.uniform(0.0, 0.05))
        return Turn(response="move", segments=turn_segments())


def turn_segments() -> tuple[Segment, Segment]:
    ids = np.arange(TOKENS, dtype=np.int32)
    sampled = Segment(
        source="sampled",
        token_ids=ids,
        logprobs=np.zeros(TOKENS, np.float32),
        versions=((0, TOKENS),),
        finish_reason="stop",
    )
    return Segment(source="environment", token_ids=ids), sampled


async def play(environment, seed: int, group: int, member: int):
    return await run_episode(environment, MODEL, seed=seed, max_turns=TURNS)


MODEL = Model()


def test_a_thousand_concurrent_episodes(benchmark):
    """Everything is one process and one thread, so CPU seconds are those of one core."""
    plan = GroupPlan(groups=EPISODES // 8, size=8)

    def all_of_them():
        groups = asyncio.run(run_groups(plan, make=World, play=play, seeds=range(plan.groups)))
        assert sum(len(group.episodes) for group in groups) == EPISODES
        assert all(episode.status == "done" for group in groups for episode in group.episodes)

    benchmark.pedantic(all_of_them, rounds=3, warmup_rounds=1)
    if not benchmark.disabled:
        per_step = benchmark.stats.stats.min / (EPISODES * TURNS)
        benchmark.extra_info["milliseconds_per_step"] = round(per_step * 1e3, 3)
        assert per_step < 1e-3


def test_rows_of_a_long_episode(benchmark):
    history = History()
    for _ in range(200):
        history.current.extend(turn_segments())
    rows = benchmark.pedantic(lambda: episode_rows(history, "step_concatenated"), rounds=10, warmup_rounds=1)
    assert len(rows[0].turns) == 200


@pytest.mark.parametrize("turns", [50, 400])
def test_memory_is_linear_in_live_tokens(benchmark, turns):
    """Bytes for each token of a history; the same for a short and a long one."""

    def bytes_per_token() -> float:
        gc.collect()
        tracemalloc.start()
        history = History()
        for _ in range(turns):
            history.current.extend(turn_segments())
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used / len(history)

    per_token = benchmark.pedantic(bytes_per_token, rounds=1)
    benchmark.extra_info["bytes_per_token"] = round(per_token, 1)
    assert per_token < 60
