"""An environment worker behind a handle: what passes the driver, and what goes from worker to worker."""

import json
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ray.exceptions import ActorDiedError
from roll_agentic import Episode
from roll_launch.config import EnvironmentConfig, EpisodesConfig
from roll_launch.episode_roles import EnvironmentSpec, EpisodeRecord, EpisodeRequest
from roll_launch.ray.environment import EnvironmentActor, RayEnvironmentWorker
from roll_launch.ray.handles import RayActor
from roll_launch.tasks.number_guessing import write_files
from roll_rollout import Completion, GenerateRequest, SamplingParams


class Reference:
    """One of the values of a call, which may be awaited again and again, or never."""

    def __init__(self, call: Callable[[], Awaitable[object]], done: list[object], index: int | None) -> None:
        self._call, self._done, self._index = call, done, index

    def __await__(self) -> Generator[object, object, object]:
        if not self._done:
            self._done.append((yield from self._call().__await__()))
        return self._done[0] if self._index is None else self._done[0][self._index]  # type: ignore[index]


class Remote:
    """A method of an actor, called as Ray does it."""

    def __init__(self, method: Callable[..., Awaitable[object]], returns: int) -> None:
        self._method, self._returns = method, returns

    def remote(self, *arguments: object) -> Reference | list[Reference]:
        call = partial(self._method, *arguments)
        done: list[object] = []
        if self._returns == 1:
            return Reference(call, done, None)
        return [Reference(call, done, index) for index in range(self._returns)]


class Behind:
    """An actor handle over an object of this process."""

    def __init__(self, inner: object, **returns: int) -> None:
        self._inner, self._returns = inner, returns

    def __getattr__(self, name: str) -> Remote:
        return Remote(getattr(self._inner, name), self._returns.get(name, 1))


class ReplicaActor:
    """Guesses 0, whatever it is asked."""

    def __init__(self, *, dies: bool = False) -> None:
        self._dies = dies

    async def generate(self, request: GenerateRequest, partial: None) -> tuple[object, Completion]:
        if self._dies:
            raise ActorDiedError
        completion = Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=np.array([7, 1], np.int32),
            logprobs=np.array([-1.0, -0.5], np.float32),
            versions=((2, 2),),
            finish_reason="stop",
            seed=request.seed,
        )
        return (completion.versions, completion.finish_reason), completion

    async def abort(self, request_id: str) -> None:
        """Nothing goes on."""


@pytest.fixture
async def worker(tmp_path: Path) -> RayEnvironmentWorker:
    write_files(tmp_path, seed=0, demonstrations=0)
    handle = RayEnvironmentWorker("environment-0", Behind(EnvironmentActor(), play=2))
    await handle.start(
        EnvironmentSpec(
            tokenizer=tmp_path / "tokenizer",
            environments=(EnvironmentConfig(name="number_guessing", isolation="none"),),
            episodes=EpisodesConfig(max_turns=5, form="raw"),
            sampling=SamplingParams(max_tokens=4, stop_token_ids=(1,)),
            max_context=32,
            turn_deadline_s=10.0,
        )
    )
    return handle


def replica(*, dies: bool = False) -> RayActor:
    return RayActor("actor-3", Behind(ReplicaActor(dies=dies), generate=2))


REQUEST = EpisodeRequest(id="1", environment="number_guessing", start=6, seed=8)


async def test_the_driver_holds_a_reference_and_facts(worker: RayEnvironmentWorker, tmp_path: Path) -> None:
    played = await worker.play(REQUEST, replica())
    assert (played.status, played.tokens, played.oldest_version) == ("done", 2 * played.turns, 2)
    assert not isinstance(played.episode, Episode)
    record = EpisodeRecord(
        step=1, group=0, member=0, seed=8, environment="number_guessing", start=6, played=played, reward=0.0
    )
    path = tmp_path / "rl.jsonl"
    assert await worker.record(path, [record], offset=0) == path.stat().st_size
    assert json.loads(path.read_text())["messages"][1] == {"role": "policy", "text": "0"}
    assert not (await worker.pulse()).busy
    await worker.abort("one that is over")


async def test_a_replica_that_died_is_named_as_such(worker: RayEnvironmentWorker) -> None:
    played = await worker.play(REQUEST, replica(dies=True))
    assert played.failure is not None
    kind, message = played.failure
    assert kind == "replica" and "actor-3 died during generate" in message
