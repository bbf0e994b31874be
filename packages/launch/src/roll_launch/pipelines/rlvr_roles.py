"""The roles of a stage of reinforcement learning, placed and kept serving."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from roll_launch.pipelines import specs
from roll_launch.pipelines.placed_models import PlacedModelGroups, start_placed_models
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import PolicyPlan, RlvrPlan
from roll_launch.role_group import Living, RoleGroup
from roll_launch.roles import Actor, RewardWorker, Runtime, Trainer, TrainerSpec
from roll_launch.side_roles import CriticRole, CriticSpec, TeacherRole
from roll_launch.waits import listed

Role = TypeVar("Role")
Worker = TypeVar("Worker", bound=Living)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlvrRoles:
    """What computes. The two groups are to be entered around the stage."""

    trainer: Trainer
    actors: RoleGroup[Actor]
    workers: RoleGroup[RewardWorker]
    models: PlacedModelGroups
    teachers: tuple[TeacherRole, ...]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Keeps what may be replaced serving while it is entered."""
        async with self.models, self.actors, self.workers:
            yield


async def start_rlvr_roles(plan: RlvrPlan, context: RunContext, *, checkpoint: Path | None) -> RlvrRoles:
    """Starts all roles of a stage at once.

    Args:
        plan: Of the stage.
        context: Of the run.
        checkpoint: Where the trainer goes on from, None for the stage's own model.

    Raises:
        WaitExpired: A role did not start in time; names those that are missing.
        RoleError: One failed.
    """
    stage, runtime = plan.stage, context.runtime
    recordings = context.directory.recordings(stage.name)
    actor = specs.actor(plan, processors=context.processors, recordings=recordings)
    start_actor = partial(runtime.start_actor, spec=actor)
    start_worker = partial(runtime.start_reward_worker, spec=specs.reward_worker(plan))
    trainer_spec = specs.policy_trainer(plan, processors=context.processors, checkpoint=checkpoint)
    actors = group_of("rollout actor", start_actor, plan, context)
    workers = group_of("reward worker", start_worker, plan, context)
    critics = specs.placed_critics(plan, trainer_spec, processors=context.processors)
    starting: set[str] = set()

    async def started(name: str, role: Awaitable[Role]) -> Role:
        starting.add(name)
        made = await role
        starting.discard(name)
        return made

    async with (
        context.waits.wait(
            f"start of the roles of {stage.name}",
            deadline_s=stage.deadlines.start_s,
            pending=lambda: listed(starting),
        ),
        asyncio.TaskGroup() as tasks,
    ):
        trainer = tasks.create_task(
            started("trainer", start_with_critics(runtime, trainer_spec, critics, started))
        )
        teachers = [
            tasks.create_task(started(name, runtime.start_teacher(name, spec)))
            for number, spec in enumerate(trainer_spec.teachers)
            if spec.own
            for name in [f"teacher-{number}"]
        ]
        for name in (f"actor-{index}" for index in range(stage.rollout.replicas)):
            tasks.create_task(started(name, actors.start(name)))
        for name in (f"reward-{index}" for index in range(stage.rewards.workers)):
            tasks.create_task(started(name, workers.start(name)))
    return RlvrRoles(
        trainer=trainer.result(),
        actors=actors,
        workers=workers,
        models=await start_placed_models(plan, context, workers),
        teachers=tuple(teacher.result() for teacher in teachers),
    )


async def start_with_critics(
    runtime: Runtime,
    spec: TrainerSpec,
    critics: Sequence[CriticSpec],
    started: Callable[[str, Awaitable[CriticRole]], Awaitable[CriticRole]],
) -> Trainer:
    """The trainer, after the critics that are roles of their own: they are what it asks."""
    if not critics:
        return await runtime.start_trainer(spec)
    made = await asyncio.gather(
        *(
            started(name, runtime.start_critic(name, critic))
            for number, critic in enumerate(critics)
            for name in [f"critic-{number}"]
        )
    )
    return await runtime.start_trainer(spec, made)


def group_of(
    role: str, start: Callable[[str], Awaitable[Worker]], plan: PolicyPlan, context: RunContext
) -> RoleGroup[Worker]:
    """The workers of one role, none of which is started yet."""
    return RoleGroup(
        role,
        start=start,
        health=plan.stage.health,
        waits=context.waits,
        start_deadline_s=plan.stage.deadlines.start_s,
    )
