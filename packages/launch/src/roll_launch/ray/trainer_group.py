"""A trainer of several ranks: an actor each, in one process group, driven as if they were one."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import ray
from roll_learners.sample import Sample
from roll_learners.update import StepResult

from roll_launch.failures import RoleDied, RoleError
from roll_launch.ray.actors import TrainerActor
from roll_launch.ray.handles import Remote, answer
from roll_launch.ray.object_store import RayObjectStore
from roll_launch.roles import Handle, PublishedWeights, ScoredRollout, TrainerSpec

Result = TypeVar("Result")

MEETING = timedelta(seconds=300)
"""Bound of a rank's wait for the others to start."""

OTHERS_S = 5.0
"""Seconds in which, after one rank has failed, the others may tell of the cause."""


class RankActor(TrainerActor):
    """One rank of a trainer. The first one holds the store at which they meet."""

    def meeting_place(self) -> tuple[str, int]:
        """Address and port of the store, which only this rank opens."""
        from torch._C._distributed_c10d import TCPStore

        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # of Ray
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=MEETING)
        return address, self._store.port

    def join(self, spec: TrainerSpec, rank: int, address: str, port: int) -> None:
        """Joins the group and builds this rank's part of the models."""
        from torch._C._distributed_c10d import TCPStore

        from roll_launch.workers.fsdp2 import Fsdp2TrainerWorker

        if rank:
            self._store = TCPStore(address, port, is_master=False, timeout=MEETING)
        self._worker = Fsdp2TrainerWorker(spec, rank, self._store, RayObjectStore())


class RayTrainerGroup:
    """`Trainer` over the ranks of one group.

    Every call goes to all ranks. A rank that dies takes the run with it: the others wait for it in vain, so
    the call ends with its death, and whoever started them ends them.
    """

    def __init__(self, actors: Sequence[Remote]) -> None:
        """Args:
        actors: `RankActor`s, the first of which is rank 0.
        """
        self._actors = list(actors)

    async def start(self, spec: TrainerSpec) -> None:
        """Brings the ranks together; the other methods need it."""
        address, port = await answer("trainer-0", "meeting_place", self._actors[0].meeting_place.remote())
        await _together(
            "start", [actor.join.remote(spec, rank, address, port) for rank, actor in enumerate(self._actors)]
        )

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        given = (
            [sample.completion for sample in samples],
            [sample.reward for sample in samples],
            [sample.group for sample in samples],
            [sample.domain for sample in samples],
            list(teachers),
        )
        results = await _together("policy_step", [actor.policy_step.remote(*given) for actor in self._actors])
        first: StepResult = results[0]
        return first

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        shared = ray.put(list(samples))
        results = await _together(
            "supervised_step", [actor.supervised_step.remote(shared) for actor in self._actors]
        )
        first: StepResult = results[0]
        return first

    async def publish(self, version: int) -> PublishedWeights:
        pairs = [actor.publish.remote(version) for actor in self._actors]
        checksums = await _together("publish", [checksum for _, checksum in pairs])
        return PublishedWeights(version=version, checksum=checksums[0], update=pairs[0][0])

    async def probe(self, completion: Handle) -> float:
        results = await _together("probe", [actor.probe.remote(completion) for actor in self._actors])
        first: float = results[0]
        return first

    async def save(self, directory: Path, *, state: bool) -> None:
        await _together("save", [actor.save.remote(directory, state) for actor in self._actors])

    async def peak_rss_gb(self) -> float:
        """Of the rank that took most."""
        taken: list[float] = await _together(
            "peak_rss_gb", [actor.peak_rss_gb.remote() for actor in self._actors]
        )
        return max(taken)


async def _together(method: str, references: Sequence[Awaitable[Any]]) -> list[Any]:
    """The answers of all ranks.

    Raises:
        RoleDied: The process of a rank is gone.
        RoleError: A rank raised; the one that did first, unless one died.
    """
    calls: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(answer(f"trainer-{rank}", method, reference))
        for rank, reference in enumerate(references)
    ]
    try:
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        failed = [call for call in done if call.exception() is not None]
        if failed and waiting and not _deaths(failed):
            # What was heard first is often the echo of a death.
            done, waiting = await asyncio.wait(calls, timeout=OTHERS_S)
            failed = [call for call in done if call.exception() is not None]
    finally:
        for call in calls:
            call.cancel()
    for first in _deaths(failed) or sorted(failed, key=_when):
        first.result()
    return [call.result() for call in calls]


def _deaths(failed: Sequence["asyncio.Future[Any]"]) -> list["asyncio.Future[Any]"]:
    return [call for call in failed if isinstance(call.exception(), RoleDied)]


def _when(call: "asyncio.Future[Any]") -> float:
    error = call.exception()
    return error.when if isinstance(error, RoleError) else 0.0
