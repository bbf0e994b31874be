"""An environment worker in this process; also what a dry run plays with."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

from roll_agentic import Episode
from roll_rollout import Completion, GenerateRequest

from roll_launch.episode_roles import EnvironmentSpec, EpisodeRecord, EpisodeRequest, PlayedEpisode
from roll_launch.role_thread import completion_of
from roll_launch.roles import Actor, Handle, Pulse
from roll_launch.workers.environment import EpisodePlayer


class LocalEnvironmentWorker:
    """`EnvironmentWorker` in the driver's own loop; environments that block take threads of their own."""

    def __init__(self, player: EpisodePlayer) -> None:
        self._player = player

    @classmethod
    async def of(cls, spec: EnvironmentSpec) -> "LocalEnvironmentWorker":
        """A worker that has started."""
        player = EpisodePlayer(spec)
        await player.start()
        return cls(player)

    async def play(self, request: EpisodeRequest, actor: Actor) -> PlayedEpisode:
        played, episode = await self._player.play(request, _Replica(actor))
        return replace(played, episode=episode)

    async def abort(self, request_id: str) -> None:
        await self._player.abort(request_id)

    async def record(self, path: Path, records: Sequence[EpisodeRecord], *, offset: int) -> int:
        episodes = [episode_of(record.played.episode) for record in records]
        return await asyncio.to_thread(self._player.record, path, records, episodes, offset)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)

    async def close(self) -> None:
        """Closes environments and connections."""
        await self._player.close()


class _Replica:
    """A replica of this process."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def generate(self, request: GenerateRequest) -> Completion:
        return completion_of((await self._actor.generate(request)).completion)

    def abort(self, request_id: str) -> Coroutine[object, object, None]:
        return self._actor.abort(request_id)


def episode_of(handle: Handle) -> Episode:
    """The episode behind a handle of this process, where the handle is the episode itself."""
    if not isinstance(handle, Episode):
        raise TypeError(f"an episode was expected in this process, got {type(handle).__name__}")
    return handle
