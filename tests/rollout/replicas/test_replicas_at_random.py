"""Requests, aborts, drains, removals, deaths and updates in any order: nothing is lost or doubled."""

import asyncio
import itertools
import logging
import random

import pytest
from roll_rollout.replicas import Replicas

from .conftest import FaultyEngine, make_update, request_of, tokens_of

ACTIONS = ("request", "request", "abort", "add", "drain", "remove", "die", "update", "wait")


class World:
    """A set under test, with all engines that it ever had."""

    def __init__(self) -> None:
        self.engines: dict[str, FaultyEngine] = {}
        self.all: list[FaultyEngine] = []
        self.published = 0
        self.tasks: dict[asyncio.Task, object] = {}
        self.aborted: set[str] = set()
        self.control: list[asyncio.Task] = []
        self.most_updating = 0
        first = {name: self.engine(name) for name in ("a", "b")}
        self.replicas = Replicas(first, make=self.make, standing_still=2, deaths=50, attempts=3)

    def engine(self, name: str) -> FaultyEngine:
        world = self

        class Checked(FaultyEngine):
            async def generate(self, request):
                world.most_updating = max(world.most_updating, sum(each.updating for each in world.all))
                serving = {member.name: member.engine for member in world.replicas._roster.open()}
                assert serving.get(self.name) is self, f"{self.name} was asked and does not serve"
                # What it holds is what was published last, unless an update is rolling.
                held = world.replicas._roster.wanted.update
                assert held is None or self.version >= held.version
                return await super().generate(request)

        made = Checked(name=name)
        self.engines[name] = made
        self.all.append(made)
        return made

    async def make(self, name: str) -> FaultyEngine:
        await asyncio.sleep(0)
        return self.engine(name)

    def known(self, number: int) -> str | None:
        names = sorted(self.replicas._roster.members)
        return names[number % len(names)] if names else None

    def serving(self) -> int:
        return sum(status.state == "serving" for status in self.replicas.status())

    async def act(self, action: str, number: int) -> None:
        name = self.known(number)
        if action == "request":
            request = request_of(
                f"r{len(self.tasks)}", seed=number, prompt=(number % 3 + 1, 2), max_tokens=3 + 5 * number
            )
            self.tasks[asyncio.create_task(self.replicas.generate(request))] = request
        elif action == "abort" and self.tasks:
            request = list(self.tasks.values())[number % len(self.tasks)]
            self.aborted.add(request.id)
            self.control.append(asyncio.create_task(self.replicas.abort([request.id])))
        elif action == "add":
            fresh = f"n{len(self.all)}"
            self.control.append(asyncio.create_task(self.replicas.add(fresh, self.engine(fresh))))
        elif action == "drain" and name and self.serving() > 1:
            self.control.append(asyncio.create_task(self.replicas.drain(name)))
        elif action == "remove" and name and self.serving() > 1 and name != "a":
            if not any(task.get_name() == f"remove {name}" for task in self.control):
                self.control.append(asyncio.create_task(self.replicas.remove(name), name=f"remove {name}"))
        elif action == "die" and name:
            await self.engines[name].die()
        elif action == "update":
            self.published += 1
            self.control.append(
                asyncio.create_task(self.replicas.update_weights(make_update(self.published)))
            )
        for _ in range(number * 3 if action == "wait" else 1):
            await asyncio.sleep(0)


async def play(steps) -> None:
    world = World()
    world.replicas._roster._sleep = lambda seconds: asyncio.sleep(0)
    async with asyncio.timeout(20):
        for action, number in steps:
            await world.act(action, number)
        # Whatever was drained or died: one that serves, so that all requests can end.
        await world.replicas.add("last", world.engine("last"))
        completions = await asyncio.gather(*world.tasks, return_exceptions=True)
        outcomes = await asyncio.gather(*world.control, return_exceptions=True)
    for request, completion in zip(world.tasks.values(), completions, strict=True):
        if isinstance(completion, Exception):
            # Only while nobody was there at all may a request fail.
            assert "no replica serves" in str(completion)
            continue
        assert completion.request_id == request.id
        assert completion.token_ids.tolist() == tokens_of(request, len(completion))
        whole = completion.finish_reason == "length" and len(completion) == request.sampling.max_tokens
        assert whole or (completion.finish_reason == "abort" and request.id in world.aborted)
        versions = [version for version, _ in completion.versions]
        assert set(versions) <= set(range(world.published + 1))
        assert all(one != other for one, other in itertools.pairwise(versions))
    unexpected = [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Exception)
        and "no replica" not in str(outcome)
        and "unknown" not in str(outcome)
    ]
    assert unexpected == []
    assert world.most_updating <= 2
    load = await world.replicas.load()
    assert (load.running, load.waiting, load.kv_tokens) == (0, 0, 0)
    await world.replicas.update_weights(make_update(world.published + 1))
    live = [member.engine for member in world.replicas._roster.live()]
    assert {engine.version for engine in live} == {world.published + 1}
    await world.replicas.close()
    assert all(engine.closed for engine in live)


def steps_of(rng: random.Random) -> list[tuple[str, int]]:
    return [(rng.choice(ACTIONS), rng.randrange(8)) for _ in range(rng.randrange(5, 60))]


@pytest.mark.parametrize(
    "seed", [*range(4), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24)]]
)
def test_nothing_is_lost_whatever_happens(seed, caplog):
    caplog.set_level(logging.CRITICAL, logger="roll_rollout")
    for number in range(60):
        steps = steps_of(random.Random(f"{seed}/{number}"))
        try:
            asyncio.run(play(steps))
        except BaseException as error:
            error.add_note(f"seed {seed}, number {number}: {steps}")
            raise
