"""Every role in this process (`runtime: local`): the same pipelines under a debugger, without Ray.

Blocking work runs on one named thread a role, so that a busy learner never stops a deadline or the watchdog.
"""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import Completion, Engine, GenerateRequest, WeightReceipt
from roll_rollout.sync import InProcessReceiver, Receiver

from roll_launch.episode_roles import EnvironmentSpec, EnvironmentWorker
from roll_launch.failures import RoleError
from roll_launch.local_environment import LocalEnvironmentWorker
from roll_launch.local_side_roles import LocalCritic, LocalOfflineTrainer, LocalRewardModel, LocalTeacher
from roll_launch.replica import Replica
from roll_launch.role_thread import RoleThread, completion_of, rollout_behind
from roll_launch.roles import (
    Actor,
    ActorSpec,
    Handle,
    PublishedWeights,
    Pulse,
    RewardSpec,
    RewardWorker,
    Rollout,
    RolloutRecord,
    ScoredRollout,
    Trainer,
    TrainerSpec,
)
from roll_launch.side_roles import (
    CriticRole,
    CriticSpec,
    OfflineSpec,
    OfflineTrainer,
    RewardModelRole,
    RewardModelSpec,
    TeacherRole,
    TeacherSpec,
)
from roll_launch.transports import chosen, make_receiver
from roll_launch.workers.reward import RewardJudge


class LocalTrainer:
    """`Trainer` on a thread of this process."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: TrainerSpec, critics: Sequence[Any] = ()) -> None:
        """Builds the model; the other methods need it."""
        # torch and transformers load here, on the role's thread, and not where a command line is parsed.
        from roll_launch.workers.trainer import TrainerWorker

        self._worker = await self._thread.call(TrainerWorker, spec, critics)

    async def policy_step(
        self, samples: Sequence[ScoredRollout], teachers: Sequence[Handle] = ()
    ) -> StepResult:
        completions = [rollout_behind(sample.completion) for sample in samples]
        rewards = [sample.reward for sample in samples]
        groups = [sample.group for sample in samples]
        domains = [sample.domain for sample in samples]
        return await self._thread.call(
            self._worker.policy_step, completions, rewards, groups, domains, teachers
        )

    async def supervised_step(self, samples: Sequence[Sample]) -> StepResult:
        return await self._thread.call(self._worker.supervised_step, samples)

    async def publish(self, version: int) -> PublishedWeights:
        update, checksum = await self._thread.call(self._worker.publish, version)
        return PublishedWeights(version=version, checksum=checksum, update=update)

    async def probe(self, completion: Handle) -> float:
        return await self._thread.call(self._worker.probe, completion_of(completion))

    async def save(self, directory: Path, *, state: bool) -> None:
        await self._thread.call(self._worker.save, directory, state)

    async def peak_rss_gb(self) -> float:
        return await self._thread.call(self._worker.peak_rss_gb)


class LocalActor:
    """`Actor` over an engine in this process; also what a dry run generates with."""

    def __init__(
        self, engine: Engine, receiver: Receiver | None = None, *, deadline_s: float = 600.0
    ) -> None:
        self.engine = engine
        self._replica = Replica(engine, receiver or InProcessReceiver(), deadline_s=deadline_s)

    async def generate(self, request: GenerateRequest, partial: Handle | None = None) -> Rollout:
        before = None if partial is None else completion_of(partial)
        return rollout_of(await self._replica.generate(request, before))

    async def abort(self, request_id: str) -> None:
        await self.engine.abort([request_id])

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        return await self._replica.update_weights(published.update)

    async def pulse(self) -> Pulse:
        return Pulse.of(await self.engine.load())


class LocalRewardWorker:
    """`RewardWorker` in this process; graders that block take a thread of their own."""

    def __init__(self, judge: RewardJudge) -> None:
        self._judge = judge

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        return await self._judge.grade(completion_of(completion), reference, columns)

    async def serve_models(self, models: Mapping[str, Sequence[Any]]) -> None:
        self._judge.serve_models(models)

    async def record(self, path: Path, records: Sequence[RolloutRecord], *, offset: int) -> int:
        completions = [completion_of(record.completion) for record in records]
        return await asyncio.to_thread(self._judge.record, path, records, completions, offset)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


class LocalRuntime:
    """`Runtime` that keeps every role in this process."""

    def __init__(self) -> None:
        self._threads: list[RoleThread] = []
        self._engines: dict[str, Engine] = {}
        self._environments: list[LocalEnvironmentWorker] = []
        # transformers builds models under process-wide settings: two at once come out incomplete.
        self._building = asyncio.Lock()

    async def start_trainer(self, spec: TrainerSpec, critics: Sequence[CriticRole] = ()) -> Trainer:
        spec = replace(spec, sync=chosen(spec.sync, runtime="local", hosts=1))
        trainer = LocalTrainer(self._thread("trainer"))
        async with self._building:
            await trainer.start(spec, [critic.handle for critic in critics])
        return trainer

    async def start_offline_trainer(self, spec: OfflineSpec) -> OfflineTrainer:
        sync = chosen(spec.trainer.sync, runtime="local", hosts=1)
        spec = replace(spec, trainer=replace(spec.trainer, sync=sync))
        trainer = LocalOfflineTrainer(self._thread("trainer"))
        async with self._building:
            await trainer.start(spec)
        return trainer

    async def start_teacher(self, name: str, spec: TeacherSpec) -> TeacherRole:
        teacher = LocalTeacher(self._thread(name))
        async with self._building:
            await teacher.start(spec)
        return teacher

    async def start_critic(self, name: str, spec: CriticSpec) -> CriticRole:
        critic = LocalCritic(self._thread(name))
        async with self._building:
            await critic.start(spec)
        return critic

    async def start_reward_model(self, name: str, spec: RewardModelSpec) -> RewardModelRole:
        model = LocalRewardModel(self._thread(name))
        async with self._building:
            await model.start(spec)
        return model

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        if name in self._engines:
            raise RoleError(name, "start", "runtime local keeps it in this process, where it cannot be ended")
        thread = self._thread(name)
        async with self._building:
            self._engines[name] = await _start_engine(spec, thread)
        sync = chosen(spec.sync, runtime="local", hosts=1)
        receiver = make_receiver(sync, name=name)
        return LocalActor(self._engines[name], receiver, deadline_s=sync.deadline_s)

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        return LocalRewardWorker(RewardJudge(spec))

    async def start_environment_worker(self, name: str, spec: EnvironmentSpec) -> EnvironmentWorker:
        worker = await LocalEnvironmentWorker.of(spec)
        self._environments.append(worker)
        return worker

    async def stop_roles(self) -> None:
        for worker in self._environments:
            await worker.close()
        self._environments.clear()
        for engine in self._engines.values():
            await engine.close()
        for thread in self._threads:
            thread.close()
        self._engines.clear()
        self._threads.clear()

    async def close(self) -> None:
        await self.stop_roles()

    def _thread(self, name: str) -> RoleThread:
        thread = RoleThread(name)
        self._threads.append(thread)
        return thread


def rollout_of(completion: Completion) -> Rollout:
    """What the driver holds of a completion that stays in this process."""
    return Rollout(
        completion=completion,
        versions=completion.versions,
        finish=completion.finish_reason,
    )


async def _start_engine(spec: ActorSpec, thread: RoleThread) -> Engine:
    # As with the trainer, torch and transformers load on the role's thread.
    worker = await thread.call(importlib.import_module, "roll_launch.workers.actor")
    engine: Engine = await worker.start_engine(spec, thread.executor)
    return engine
