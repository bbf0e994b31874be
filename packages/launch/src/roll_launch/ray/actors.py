"""What runs in Ray actors: each class holds one role's worker and is called only through `handles.py`."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef
from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import Completion, GenerateRequest, WeightReceipt
from roll_rollout.sync import Publication

from roll_launch.ray.object_store import RayObjectStore
from roll_launch.replica import Replica
from roll_launch.roles import ActorSpec, Pulse, RewardSpec, RolloutRecord, TrainerSpec
from roll_launch.transports import make_receiver


class TrainerActor:
    """A trainer in a process of its own. Blocking methods, one at a time."""

    def start(self, spec: TrainerSpec, critics: Sequence[Any]) -> None:
        from roll_launch.workers.trainer import TrainerWorker

        self._worker = TrainerWorker(spec, critics, RayObjectStore())

    def policy_step(
        self,
        completions: list["ObjectRef[Completion]"],
        rewards: Sequence[float],
        groups: Sequence[int],
        domains: Sequence[str],
        teachers: list["ObjectRef[Any]"],
    ) -> StepResult:
        return self._worker.policy_step(ray.get(completions), rewards, groups, domains, ray.get(teachers))

    def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        return self._worker.supervised_step(samples)

    @ray.method(num_returns=2)
    def publish(self, version: int) -> tuple[Publication, str]:
        return self._worker.publish(version)

    def probe(self, completion: Completion) -> float:
        return self._worker.probe(completion)

    def save(self, directory: Path, state: bool) -> None:
        self._worker.save(directory, state)

    def peak_rss_gb(self) -> float:
        return self._worker.peak_rss_gb()


class RolloutActor:
    """A rollout replica in a process of its own; its event loop has many calls open at once."""

    async def start(self, name: str, spec: ActorSpec) -> None:
        from roll_launch.workers.actor import start_engine

        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        receiver = make_receiver(spec.sync, name=name, store=RayObjectStore())
        engine = await start_engine(spec, self._executor)
        self._replica = Replica(engine, receiver, deadline_s=spec.sync.deadline_s)

    @ray.method(num_returns=2)
    async def generate(
        self, request: GenerateRequest, partial: Completion | None
    ) -> tuple[tuple[tuple[tuple[int, int], ...], str], Completion]:
        completion = await self._replica.generate(request, partial)
        return (completion.versions, completion.finish_reason), completion

    async def abort(self, request_id: str) -> None:
        await self._replica.engine.abort([request_id])

    async def update_weights(self, published: object) -> WeightReceipt:
        return await self._replica.update_weights(published)

    async def pulse(self) -> Pulse:
        return Pulse.of(await self._replica.engine.load())


class RewardActor:
    """A reward worker in a process of its own; it loads no torch."""

    async def start(self, spec: RewardSpec) -> None:
        from roll_launch.workers.reward import RewardJudge

        self._judge = RewardJudge(spec)

    async def grade(self, completion: Completion, reference: object, columns: Mapping[str, object]) -> Score:
        return await self._judge.grade(completion, reference, columns)

    async def serve_models(self, models: Mapping[str, Sequence[Any]]) -> None:
        self._judge.serve_models(models)

    async def record(
        self,
        path: Path,
        records: Sequence[RolloutRecord],
        completions: list["ObjectRef[Completion]"],
        offset: int,
    ) -> int:
        found = [await completion for completion in completions]
        return await asyncio.to_thread(self._judge.record, path, records, found, offset)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)
