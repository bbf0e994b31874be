"""An environment worker in a Ray actor, and what the driver holds of it."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray import ObjectRef
from roll_rollout import Completion, GenerateRequest

from roll_launch.episode_roles import EnvironmentSpec, EpisodeRecord, EpisodeRequest, PlayedEpisode
from roll_launch.ray.handles import RayActor, Remote, answer
from roll_launch.roles import Actor, Pulse

if TYPE_CHECKING:
    from roll_agentic import Episode


class EnvironmentActor:
    """An environment worker in a process of its own; it loads no torch, and asks replicas itself."""

    async def start(self, spec: EnvironmentSpec) -> None:
        from roll_launch.workers.environment import EpisodePlayer

        self._player = EpisodePlayer(spec)
        await self._player.start()

    @ray.method(num_returns=2)
    async def play(
        self, request: EpisodeRequest, name: str, replica: Remote
    ) -> "tuple[PlayedEpisode, Episode | None]":
        return await self._player.play(request, RayReplica(name, replica))

    async def abort(self, request_id: str) -> None:
        await self._player.abort(request_id)

    async def record(
        self, path: Path, records: Sequence[EpisodeRecord], episodes: "list[ObjectRef[Episode]]", offset: int
    ) -> int:
        found = [await episode for episode in episodes]
        return await asyncio.to_thread(self._player.record, path, records, found, offset)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


class RayReplica:
    """A rollout replica, as an environment worker calls it: its tokens come straight from there."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor

    async def generate(self, request: GenerateRequest) -> Completion:
        _, completion = self._actor.generate.remote(request, None)
        found: Completion = await answer(self._name, "generate", completion)
        return found

    def abort(self, request_id: str) -> Coroutine[object, object, None]:
        return answer(self._name, "abort", self._actor.abort.remote(request_id))


class RayEnvironmentWorker:
    """`EnvironmentWorker` in an actor; episodes stay in the object store."""

    def __init__(self, name: str, actor: Remote) -> None:
        self._name = name
        self._actor = actor

    async def start(self, spec: EnvironmentSpec) -> None:
        await answer(self._name, "start", self._actor.start.remote(spec))

    async def play(self, request: EpisodeRequest, actor: Actor) -> PlayedEpisode:
        if not isinstance(actor, RayActor):
            raise TypeError(f"a replica in a Ray actor was expected, got {type(actor).__name__}")
        facts, episode = self._actor.play.remote(request, actor.name, actor.remote)
        played: PlayedEpisode = await answer(self._name, "play", facts)
        return replace(played, episode=episode)

    async def abort(self, request_id: str) -> None:
        await answer(self._name, "abort", self._actor.abort.remote(request_id))

    async def record(self, path: Path, records: Sequence[EpisodeRecord], *, offset: int) -> int:
        episodes = [record.played.episode for record in records]
        told = [replace(record, played=replace(record.played, episode=None)) for record in records]
        return await answer(self._name, "record", self._actor.record.remote(path, told, episodes, offset))

    async def pulse(self) -> Pulse:
        return await answer(self._name, "pulse", self._actor.pulse.remote())
