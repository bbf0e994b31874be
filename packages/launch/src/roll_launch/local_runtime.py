"""Every role in this process (`runtime: local`): the same pipelines under a debugger, without Ray.

Blocking work runs on one named thread a role, so that a busy learner never stops a deadline or the watchdog.
"""

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from roll_learners.sample import Sample
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import Completion, Engine, GenerateRequest, WeightReceipt, WeightUpdate

from roll_launch.failures import RoleError
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
from roll_launch.workers.reward import RewardJudge

Result = TypeVar("Result")


class RoleThread:
    """One named thread on which the blocking work of one role runs, in order."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Runs `function` on the thread. A cancelled caller leaves it to end by itself."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)

    def close(self) -> None:
        """Lets go of the thread without waiting for what it is doing."""
        self.executor.shutdown(wait=False, cancel_futures=True)


class LocalTrainer:
    """`Trainer` on a thread of this process."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: TrainerSpec) -> None:
        """Builds the model; the other methods need it."""
        # torch and transformers load here, on the role's thread, and not where a command line is parsed.
        from roll_launch.workers.trainer import TrainerWorker

        self._worker = await self._thread.call(TrainerWorker, spec)

    async def policy_step(self, samples: Sequence[ScoredRollout]) -> StepResult:
        completions = [completion_of(sample.completion) for sample in samples]
        rewards = [sample.reward for sample in samples]
        groups = [sample.group for sample in samples]
        return await self._thread.call(self._worker.policy_step, completions, rewards, groups)

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

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def generate(self, request: GenerateRequest, partial: Handle | None = None) -> Rollout:
        if partial is not None:
            request = request.resumed(completion_of(partial))
        return rollout_of(await self.engine.generate(request))

    async def abort(self, request_id: str) -> None:
        await self.engine.abort([request_id])

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        if not isinstance(published.update, WeightUpdate):
            raise TypeError(f"published weights hold {type(published.update).__name__}, not a WeightUpdate")
        return await self.engine.update_weights(published.update)

    async def pulse(self) -> Pulse:
        return Pulse.of(await self.engine.load())


class LocalRewardWorker:
    """`RewardWorker` in this process; graders that block take a thread of their own."""

    def __init__(self, judge: RewardJudge) -> None:
        self._judge = judge

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        return await self._judge.grade(completion_of(completion), reference, columns)

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
        # transformers builds models under process-wide settings: two at once come out incomplete.
        self._building = asyncio.Lock()

    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        trainer = LocalTrainer(self._thread("trainer"))
        async with self._building:
            await trainer.start(spec)
        return trainer

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        if name in self._engines:
            raise RoleError(name, "start", "runtime local keeps it in this process, where it cannot be ended")
        thread = self._thread(name)
        async with self._building:
            self._engines[name] = await _start_engine(spec, thread)
        return LocalActor(self._engines[name])

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        return LocalRewardWorker(RewardJudge(spec))

    async def stop_roles(self) -> None:
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


def completion_of(handle: Handle) -> Completion:
    """The completion behind a handle of this runtime, where the handle is the completion itself."""
    if not isinstance(handle, Completion):
        raise TypeError(f"a completion was expected in this process, got {type(handle).__name__}")
    return handle


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
