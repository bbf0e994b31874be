"""`Runtime` on Ray: places each role in an actor of its own."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ray
from roll_hw import worker_environment

from roll_launch.config import (
    AgenticStage,
    DistillationStage,
    Fsdp2LearnerConfig,
    PreferenceStage,
    RayRuntimeConfig,
    RewardsConfig,
    RlvrStage,
    StageConfig,
)
from roll_launch.episode_roles import EnvironmentSpec, EnvironmentWorker
from roll_launch.ray.actors import RewardActor, RolloutActor, TrainerActor
from roll_launch.ray.cluster import Cluster
from roll_launch.ray.cluster_thread import ClusterThread
from roll_launch.ray.environment import EnvironmentActor, RayEnvironmentWorker
from roll_launch.ray.handles import RayActor, RayRewardWorker, RayTrainer, Remote, kill
from roll_launch.ray.side_actors import CriticActor, OfflineActor, RewardModelActor, TeacherActor
from roll_launch.ray.side_handles import RayCritic, RayOfflineTrainer, RayRewardModel, RayTeacher
from roll_launch.ray.trainer_group import RankActor, RayTrainerGroup
from roll_launch.roles import (
    SLOTS_PER_ACTOR,
    Actor,
    ActorSpec,
    RewardSpec,
    RewardWorker,
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
from roll_launch.transports import chosen

CPUS = {
    "trainer": 1.0,
    "actor": 1.0,
    "reward": 0.5,
    "environment": 0.5,
    "teacher": 1.0,
    "critic": 1.0,
    "reward_model": 1.0,
}
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

    async def start_trainer(self, spec: TrainerSpec, critics: Sequence[CriticRole] = ()) -> Trainer:
        options = {"num_cpus": CPUS["trainer"]}
        spec = replace(spec, sync=chosen(spec.sync, runtime="ray", hosts=_hosts()))
        if isinstance(spec.learner, Fsdp2LearnerConfig):
            ranks = [
                self._place(f"trainer-{rank}", ray.remote(RankActor).options(**options))
                for rank in range(spec.learner.ranks)
            ]
            group = RayTrainerGroup(ranks)
            await group.start(spec)
            return group
        trainer = RayTrainer(self._place("trainer", ray.remote(TrainerActor).options(**options)))
        await trainer.start(spec, [critic.handle for critic in critics])
        return trainer

    async def start_offline_trainer(self, spec: OfflineSpec) -> OfflineTrainer:
        sync = chosen(spec.trainer.sync, runtime="ray", hosts=_hosts())
        spec = replace(spec, trainer=replace(spec.trainer, sync=sync))
        trainer = RayOfflineTrainer(
            self._place("trainer", ray.remote(OfflineActor).options(num_cpus=CPUS["trainer"]))
        )
        await trainer.start(spec)
        return trainer

    async def start_teacher(self, name: str, spec: TeacherSpec) -> TeacherRole:
        teacher = RayTeacher(
            name, self._place(name, ray.remote(TeacherActor).options(num_cpus=CPUS["teacher"]))
        )
        await teacher.start(spec)
        return teacher

    async def start_critic(self, name: str, spec: CriticSpec) -> CriticRole:
        critic = RayCritic(name, self._place(name, ray.remote(CriticActor).options(num_cpus=CPUS["critic"])))
        await critic.start(spec)
        return critic

    async def start_reward_model(self, name: str, spec: RewardModelSpec) -> RewardModelRole:
        model = RayRewardModel(name, self._place(name, _many_calls(RewardModelActor, CPUS["reward_model"])))
        await model.start(spec)
        return model

    async def start_actor(self, name: str, spec: ActorSpec) -> Actor:
        actor = RayActor(name, self._place(name, _many_calls(RolloutActor, CPUS["actor"])))
        spec = replace(spec, sync=chosen(spec.sync, runtime="ray", hosts=_hosts()))
        await actor.start(spec)
        return actor

    async def start_reward_worker(self, name: str, spec: RewardSpec) -> RewardWorker:
        worker = RayRewardWorker(name, self._place(name, _many_calls(RewardActor, CPUS["reward"])))
        await worker.start(spec)
        return worker

    async def start_environment_worker(self, name: str, spec: EnvironmentSpec) -> EnvironmentWorker:
        worker = RayEnvironmentWorker(
            name, self._place(name, _many_calls(EnvironmentActor, CPUS["environment"]))
        )
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


def _hosts() -> int:
    """Of the cluster, that are alive."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without annotations
    return len([node for node in nodes if node["Alive"]])


def _processors_of(stage: StageConfig) -> float:
    ranks = stage.learner.ranks if isinstance(stage.learner, Fsdp2LearnerConfig) else 1
    total = CPUS["trainer"] * ranks
    if isinstance(stage, RlvrStage | DistillationStage):
        total += CPUS["teacher"] * sum(teacher.placement == "own" for teacher in stage.teachers)
    critics = stage.critics if isinstance(stage, RlvrStage | AgenticStage) else None
    if critics is not None and critics.placement == "own":
        total += CPUS["critic"] * critics.count
    if isinstance(stage, AgenticStage):
        return total + CPUS["actor"] * stage.rollout.replicas + CPUS["environment"] * stage.episodes.workers
    if isinstance(stage, RlvrStage):
        return total + _generating(stage.rollout.replicas, stage.rewards)
    if isinstance(stage, PreferenceStage | DistillationStage) and stage.evaluation is not None:
        sampled = stage.evaluation.generation
        total += 0.0 if sampled is None else _generating(sampled.replicas, sampled.rewards)
    return total


def _generating(replicas: int, rewards: RewardsConfig) -> float:
    """Of engines, graders and what these ask."""
    models = sum(model.replicas for model in rewards.models if model.placement == "own")
    return CPUS["actor"] * replicas + CPUS["reward"] * rewards.workers + CPUS["reward_model"] * models
