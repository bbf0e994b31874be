"""Roles beside policy and engines, in this process: see `side_roles.py`. Each has a thread of its own."""

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_learners.sample import Sample
from roll_learners.update import StepResult

from roll_launch.role_thread import RoleThread, completion_of
from roll_launch.roles import Handle, PublishedWeights, Pulse
from roll_launch.side_roles import CriticSpec, OfflineSpec, RewardModelSpec, TeacherSpec

if TYPE_CHECKING:
    from roll_launch.workers.reward_model import RewardModelWorker


class LocalOfflineTrainer:
    """`OfflineTrainer` on a thread of this process."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: OfflineSpec) -> None:
        """Builds the model; the other methods need it."""
        self._worker = await self._thread.call(_make, "offline", "offline_worker", spec)

    async def prepare(self, samples: Sequence[Sample], *, last: bool) -> None:
        await self._thread.call(self._worker.prepare, samples, last)

    async def step(self, samples: Sequence[Sample], signals: Sequence[Handle]) -> StepResult:
        done: StepResult = await self._thread.call(self._worker.step, samples, signals)
        return done

    async def evaluate(self, samples: Sequence[Sample]) -> dict[str, float]:
        metrics: dict[str, float] = await self._thread.call(self._worker.evaluate, samples)
        return metrics

    async def publish(self, version: int) -> PublishedWeights:
        update, checksum = await self._thread.call(self._worker.publish, version)
        return PublishedWeights(version=version, checksum=checksum, update=update)

    async def probe(self, completion: Handle) -> float:
        return float(await self._thread.call(self._worker.probe, completion_of(completion)))

    async def save(self, directory: Path, *, state: bool) -> None:
        await self._thread.call(self._worker.save, directory, state)

    async def peak_rss_gb(self) -> float:
        return float(await self._thread.call(self._worker.peak_rss_gb))


class LocalTeacher:
    """`TeacherRole` on a thread of this process; its handles are the data themselves."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: TeacherSpec) -> None:
        """Builds the model; the other methods need it."""
        self._worker = await self._thread.call(_make, "teacher", "TeacherWorker", spec)

    async def top_logits(self, samples: Sequence[Sample]) -> Handle:
        return await self._thread.call(self._worker.top_logits, samples)

    async def logprobs(self, completions: Sequence[Handle]) -> Handle:
        return await self._thread.call(self._worker.logprobs, [completion_of(each) for each in completions])


class LocalCritic:
    """`CriticRole` on a thread of this process."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: CriticSpec) -> None:
        """Builds the model."""
        worker = await self._thread.call(partial(_make, alone=True), "critic", "CriticWorker", spec)
        self.handle: Handle = importlib.import_module("roll_launch.workers.critic").ThreadCritic(
            worker, self._thread.executor
        )


class LocalRewardModel:
    """`RewardModelRole` in this process; its handle is what scores."""

    def __init__(self, thread: RoleThread) -> None:
        self._thread = thread

    async def start(self, spec: RewardModelSpec) -> None:
        """Loads the model."""
        self._worker: RewardModelWorker = await self._thread.call(
            _make, "reward_model", "RewardModelWorker", spec
        )

    @property
    def handle(self) -> Handle:
        return self._worker

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=self._worker.scored)


def _make(module: str, name: str, spec: object, **options: bool) -> Any:
    """What a module of `workers/` makes of a spec. torch and transformers load here, on the role's thread."""
    made = getattr(importlib.import_module(f"roll_launch.workers.{module}"), name)
    return made(spec, **options)
