"""Ranks that are driven as one: every call reaches all, and a failure is told with its cause at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError
from roll_launch.failures import RoleDied, RoleError
from roll_launch.ray import trainer_group
from roll_launch.ray.trainer_group import RayTrainerGroup
from roll_launch.roles import ScoredRollout
from roll_learners.update import StepResult


class Method:
    """A method of a fake rank."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


class Rank:
    """A rank that answers, fails, or waits for others in vain."""

    def __init__(self, behaviour: Callable[[], Awaitable[Any]]) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in ("policy_step", "save", "probe", "peak_rss_gb"):
            setattr(self, name, Method(self._method(name, behaviour)))

    def _method(self, name: str, behaviour: Callable[[], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return await behaviour()

        return lambda *arguments: asyncio.ensure_future(call(*arguments))


def answering(value: Any) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        return value

    return answer


def failing(error: BaseException, after_s: float = 0.0) -> Callable[[], Awaitable[Any]]:
    async def fail() -> Any:
        await asyncio.sleep(after_s)
        raise error

    return fail


def raised(cause: Exception) -> Exception:
    """As Ray tells of what a call raised."""
    error: Exception = RayTaskError("call", "Traceback of the worker", cause).as_instanceof_cause()
    return error


async def hang() -> Any:
    await asyncio.Event().wait()


async def test_every_rank_is_given_the_whole_batch_and_the_first_answers() -> None:
    results = [StepResult(metrics={"actor/grad_norm": float(rank)}, updates=1) for rank in range(2)]
    ranks = [Rank(answering(result)) for result in results]
    done = await RayTrainerGroup(ranks).policy_step([ScoredRollout(completion="c", reward=1.0, group=3)])
    assert done is results[0]
    assert ranks[0].calls == ranks[1].calls == [("policy_step", (["c"], [1.0], [3], [""], []))]


async def test_a_save_is_acknowledged_by_every_rank(tmp_path: Path) -> None:
    slow = Rank(failing(raised(OSError("disk full")), after_s=0.05))
    with pytest.raises(RoleError, match=r"trainer-1 failed in save: .*disk full"):
        await RayTrainerGroup([Rank(answering(None)), slow]).save(tmp_path, state=True)


async def test_a_rank_that_dies_ends_the_call_while_the_others_wait() -> None:
    began = time.monotonic()
    with pytest.raises(RoleDied, match="trainer-1 died during policy_step"):
        await RayTrainerGroup([Rank(hang), Rank(failing(RayActorError()))]).policy_step([])
    assert time.monotonic() - began < 2


async def test_a_death_is_told_before_its_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_group, "OTHERS_S", 0.5)
    echo = Rank(failing(raised(RuntimeError("Connection closed by peer"))))
    with pytest.raises(RoleDied, match="trainer-1 died"):
        await RayTrainerGroup([echo, Rank(failing(RayActorError(), after_s=0.1))]).policy_step([])


async def test_the_rank_that_took_most_memory_counts() -> None:
    group = RayTrainerGroup([Rank(answering(1.5)), Rank(answering(2.5))])
    assert await group.peak_rss_gb() == 2.5
