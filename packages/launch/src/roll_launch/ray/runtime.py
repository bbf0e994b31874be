"""`Runtime` on Ray: places each role in an actor of its own."""

import os
from collections.abc import Sequence
from pathlib import Path

import ray
from roll_hw import worker_environment

from roll_launch.config import RayRuntimeConfig, RlvrStage, StageConfig
from roll_launch.ray.actors import RewardActor, RolloutActor, TrainerActor
from roll_launch.ray.cluster import Cluster
from roll_launch.ray.cluster_thread import ClusterThread
from roll_launch.ray.handles import RayActor, RayRewardWorker, RayTrainer, Remote, kill
from roll_launch.roles import (
    SLOTS_PER_ACTOR,
    Actor,
    ActorSpec,
    RewardSpec,
    RewardWorker,
    Trainer,
    TrainerSpec,
)

CPUS = {"trainer": 1.0, "actor": 1.0, "reward": 0.5}
"""Logical processors that Ray counts for each role; threads are set by the specs."""

WORKER_DEFAULTS = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Environment of every worker, unless the user's own says otherwise."""

CONTROL_CALLS = 256
"""Calls that an actor takes beyond one for each slot, so that aborts never queue behind what they end."""


class RayRuntime:
    """Roles as Ray actors on `cluster`."""

    def __init__(self, cluster: ClusterThread) -> None:
        self._cluster = cluster
        self._actors: dict[str, Remote] = {}

    async def start_trainer(self, spec: TrainerSpec) -> Trainer:
        actor = self._place("trainer", ray.remote(TrainerActor).options(num_cpus=CPUS["trainer"]))
        trainer = RayTrainer(actor)
        await trainer.start(spec)
        return trainer

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        actor = RayActor(name, self._place(name, _many_calls(RolloutActor, CPUS["actor"])))
        await actor.start(spec)
        return actor

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        worker = RayRewardWorker(name, self._place(name, _many_calls(RewardActor, CPUS["reward"])))
        await worker.start(spec)
        return worker

    async def stop_roles(self) -> None:
        for actor in self._actors.values():
            kill(actor)
        self._actors.clear()

    async def close(self) -> None:
        await self.stop_roles()
        await self._cluster.close()

    def _place(self, name: str, options: Remote) -> Remote:
        """A new actor under `name`; one that has the name, dead or hung, goes first and frees its place."""
        before = self._actors.pop(name, None)
        if before is not None:
            kill(before)
        self._actors[name] = options.remote()
        return self._actors[name]


def _many_calls(actor: type, processors: float) -> Remote:
    """Options of an actor whose event loop has many calls open at once."""
    return ray.remote(actor).options(num_cpus=processors, max_concurrency=SLOTS_PER_ACTOR + CONTROL_CALLS)


async def start_ray_runtime(
    config: RayRuntimeConfig, stages: Sequence[StageConfig], *, keep_logs: Path
) -> RayRuntime:
    """Starts or joins a cluster that is large enough for every stage.

    Raises:
        ClusterError: It cannot be started or joined, or is too small.
    """
    needs = {"CPU": max(_processors_of(stage) for stage in stages)}
    environment = worker_environment(os.environ, WORKER_DEFAULTS)

    def start() -> Cluster:
        return Cluster(address=config.address, needs=needs, worker_environment=environment)

    thread = ClusterThread(start, keep_logs=keep_logs)
    await thread.open()
    return RayRuntime(thread)


def _processors_of(stage: StageConfig) -> float:
    if isinstance(stage, RlvrStage):
        return (
            CPUS["trainer"] + CPUS["actor"] * stage.rollout.replicas + CPUS["reward"] * stage.rewards.workers
        )
    return CPUS["trainer"]
