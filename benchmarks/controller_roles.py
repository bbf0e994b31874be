"""Roles that do no work: what `controller_scale.py` drives, in this process or behind Ray actors.

The local ones stand for completions by reference, so that the tokens of a benchmark are nowhere. Those behind
Ray are the package's own actors with an engine, a grader and a trainer that compute nothing; their
completions are of full length and lie in the object store.
"""

import asyncio
import itertools
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from roll_launch.dry_run import DryTrainer
from roll_launch.ray.actors import RewardActor, RolloutActor, TrainerActor
from roll_launch.ray.handles import RayActor, RayRewardWorker, RayTrainer, Remote, kill
from roll_launch.replica import Replica
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
    Trainer,
    TrainerSpec,
)
from roll_learners.update import StepResult
from roll_rewards import Score
from roll_rollout import (
    Completion,
    EngineLoad,
    GenerateRequest,
    WeightReceipt,
    WeightUpdate,
    pack_buckets,
    weights_checksum,
)
from roll_rollout.sync import InProcessReceiver

CONCURRENT_CALLS = 8192
TRAINED_TOKENS = "benchmark/trained_tokens"


@dataclass(frozen=True, slots=True)
class CompletionName:
    """Stands for a completion that nobody has asked for the tokens of."""

    seed: int
    tokens: int


class FakeActor:
    """`Actor` that answers after a while with the name of a completion.

    Args:
        tokens: Length of every completion.
        longest_s: Seconds that the longest generation takes.
    """

    def __init__(self, tokens: int, longest_s: float) -> None:
        self._tokens = tokens
        self._longest_s = longest_s
        self._version = 0

    async def generate(self, request: GenerateRequest, partial: Handle | None = None) -> Rollout:
        await asyncio.sleep(seconds_of(request.seed, self._longest_s))
        tokens = min(self._tokens, request.sampling.max_tokens)
        return Rollout(
            completion=CompletionName(request.seed, tokens),
            versions=((self._version, tokens),),
            finish="stop",
        )

    async def abort(self, request_id: str) -> None:
        """Nothing runs."""

    async def update_weights(self, published: PublishedWeights) -> WeightReceipt:
        self._version = published.version
        return WeightReceipt(version=published.version, checksum=published.checksum)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


class FakeRewardWorker:
    """`RewardWorker` whose scores differ within a group and whose records go nowhere."""

    def __init__(self) -> None:
        self._graded = itertools.count()

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        await asyncio.sleep(0)
        return Score(value=float(next(self._graded) % 2), parsed="")

    async def record(self, path: Path, records: Sequence[RolloutRecord], *, offset: int) -> int:
        return offset + len(records)

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


class FakeRuntime:
    """`Runtime` in this process.

    Args:
        tokens: Length of every completion.
        longest_s: Seconds that the longest generation takes.
    """

    def __init__(self, tokens: int, longest_s: float) -> None:
        self._tokens = tokens
        self._longest_s = longest_s

    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        return DryTrainer()

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        return FakeActor(self._tokens, self._longest_s)

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        return FakeRewardWorker()

    async def stop_roles(self) -> None:
        """There is nothing to stop."""

    async def close(self) -> None:
        """There is nothing to close."""


class FakeEngine:
    """As much of an `Engine` as a rollout actor calls: completions of full length after a while."""

    def __init__(self, tokens: int, longest_s: float) -> None:
        self._tokens = tokens
        self._longest_s = longest_s
        self._version = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        await asyncio.sleep(seconds_of(request.seed, self._longest_s))
        tokens = min(self._tokens, request.sampling.max_tokens)
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=np.full(tokens, request.seed % 1000, dtype=np.int32),
            logprobs=np.zeros(tokens, dtype=np.float32),
            versions=((self._version, tokens),),
            finish_reason="stop",
            seed=request.seed,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing runs."""

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        self._version = update.version
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, kv_tokens=0, sampled_tokens=0)


class FakeJudge:
    """What a reward actor calls, without decoding."""

    def __init__(self) -> None:
        self._graded = itertools.count()

    async def grade(self, completion: Completion, reference: object, columns: Mapping[str, object]) -> Score:
        return Score(value=float(next(self._graded) % 2), parsed=str(completion.token_ids[-1]))

    def record(
        self, path: Path, records: Sequence[RolloutRecord], completions: Sequence[Completion], offset: int
    ) -> int:
        """Has them all here, and writes none."""
        return offset + len(completions)


class FakeTrainerWorker:
    """What a trainer actor calls: looks at every completion, and publishes a number."""

    def __init__(self) -> None:
        self._steps = 0

    def policy_step(
        self,
        completions: Sequence[Completion],
        rewards: Sequence[float],
        groups: Sequence[int],
        domains: Sequence[str],
        teachers: Sequence[object],
    ) -> StepResult:
        self._steps += 1
        tokens = sum(len(completion) for completion in completions)
        metrics = {"actor/grad_norm": 1.0, "actor/lr": 1.0, TRAINED_TOKENS: float(tokens)}
        return StepResult(metrics=metrics, updates=1)

    def probe(self, completion: Completion) -> float:
        return 0.0

    def publish(self, version: int) -> tuple[WeightUpdate, str]:
        number = np.array([self._steps], dtype=np.int64).view(np.uint8)
        buckets = tuple(pack_buckets([("steps", "int64", (1,), number)], max_bytes=64))
        return WeightUpdate(version=version, buckets=buckets), weights_checksum(buckets)

    def save(self, directory: Path, state: bool) -> None:
        (directory / "fake").write_text("\n", encoding="utf-8")

    def peak_rss_gb(self) -> float:
        return 0.0


class FakeRolloutActor(RolloutActor):
    """The package's actor with an engine that computes nothing."""

    def __init__(self, tokens: int, longest_s: float) -> None:
        self._made = FakeEngine(tokens, longest_s)

    async def start(self, name: str, spec: ActorSpec) -> None:
        engine: Any = self._made  # as much of one as is called
        self._replica = Replica(engine, InProcessReceiver(), deadline_s=60.0)


class FakeRewardActor(RewardActor):
    """The package's actor with a grader that computes nothing."""

    async def start(self, spec: RewardSpec) -> None:
        self._judge = FakeJudge()  # type: ignore[assignment]  # as much of one as is called


class FakeTrainerActor(TrainerActor):
    """The package's actor with a trainer that computes nothing."""

    def start(self, spec: TrainerSpec, critics: Sequence[object]) -> None:
        self._worker = FakeTrainerWorker()  # type: ignore[assignment]  # as much of one as is called


class FakeRayRuntime:
    """`Runtime` on a private Ray cluster: the package's handles and actors, few processes for many replicas.

    Args:
        tokens: Length of every completion.
        longest_s: Seconds that the longest generation takes.
        processes: Of rollout actors; replica i is a handle of process i modulo this.
        object_store_bytes: Size of the cluster's object store.
    """

    def __init__(self, tokens: int, longest_s: float, *, processes: int, object_store_bytes: int) -> None:
        self._scratch = tempfile.mkdtemp(prefix="roll-", dir="/tmp")
        self._actors: list[Remote] = []
        # Workers need not find this module.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(
            address="local",
            num_cpus=processes + 4,
            object_store_memory=object_store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=self._scratch,
        )
        remote = ray.remote(FakeRolloutActor).options(num_cpus=1, max_concurrency=CONCURRENT_CALLS)
        self._engines = [self._keep(remote.remote(tokens, longest_s)) for _ in range(processes)]

    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        trainer = RayTrainer(self._keep(ray.remote(FakeTrainerActor).options(num_cpus=1).remote()))
        await trainer.start(spec)
        return trainer

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        index = int(name.rpartition("-")[2])
        actor = RayActor(name, self._engines[index % len(self._engines)])
        await actor.start(spec)
        return actor

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        remote = ray.remote(FakeRewardActor).options(num_cpus=0.5, max_concurrency=CONCURRENT_CALLS)
        worker = RayRewardWorker(name, self._keep(remote.remote()))
        await worker.start(spec)
        return worker

    async def stop_roles(self) -> None:
        for actor in self._actors:
            kill(actor)
        self._actors.clear()

    async def close(self) -> None:
        await self.stop_roles()
        await asyncio.to_thread(ray.shutdown)
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _keep(self, actor: Remote) -> Remote:
        self._actors.append(actor)
        return actor


def seconds_of(seed: int, longest_s: float) -> float:
    """How long the fake generation of a seed takes; evenly spread up to the longest."""
    return longest_s * (1 + seed % 1024) / 1024
