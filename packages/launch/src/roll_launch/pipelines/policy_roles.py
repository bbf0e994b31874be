"""The roles that every stage of reinforcement learning has, and how they are started."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from roll_launch.pipelines import specs
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import PolicyPlan
from roll_launch.role_group import Living, RoleGroup
from roll_launch.roles import Actor, Runtime, Trainer, TrainerSpec
from roll_launch.side_roles import CriticRole, CriticSpec, TeacherRole
from roll_launch.waits import listed

Role = TypeVar("Role")
Worker = TypeVar("Worker", bound=Living)


class PolicyRoles(Protocol):
    """What computes: who trains, who generates, and whatever else a pipeline has beside them."""

    @property
    def trainer(self) -> Trainer:
        """Trains the policy."""
        ...

    @property
    def actors(self) -> RoleGroup[Actor]:
        """Generate."""
        ...

    @property
    def teachers(self) -> tuple[TeacherRole, ...]:
        """Those that are roles of their own."""
        ...

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Keeps what may be replaced serving while it is entered."""
        ...


class StartedRoles(NamedTuple):
    """What every pipeline trains and generates with."""

    trainer: Trainer
    actors: RoleGroup[Actor]
    teachers: tuple[TeacherRole, ...]


async def start_policy_roles(
    plan: PolicyPlan,
    context: RunContext,
    *,
    checkpoint: Path | None,
    workers: RoleGroup[Worker],
    names: Sequence[str],
) -> StartedRoles:
    """Starts all roles of a stage at once.

    Args:
        plan: Of the stage.
        context: Of the run.
        checkpoint: Where the trainer goes on from, None for the stage's own model.
        workers: What the pipeline has besides; started here too.
        names: Of these workers.

    Raises:
        WaitExpired: A role did not start in time; names those that are missing.
        RoleError: One failed.
    """
    stage, runtime = plan.stage, context.runtime
    recordings = context.directory.recordings(stage.name)
    actor = specs.actor(plan, processors=context.processors, recordings=recordings)
    spec = specs.policy_trainer(plan, processors=context.processors, checkpoint=checkpoint)
    actors = group_of("rollout actor", partial(runtime.start_actor, spec=actor), plan, context)
    critics = specs.placed_critics(plan, spec, processors=context.processors)
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
        trainer = tasks.create_task(started("trainer", start_with_critics(runtime, spec, critics, started)))
        teachers = [
            tasks.create_task(started(name, runtime.start_teacher(name, teacher)))
            for number, teacher in enumerate(spec.teachers)
            if teacher.own
            for name in [f"teacher-{number}"]
        ]
        for name in (f"actor-{index}" for index in range(stage.rollout.replicas)):
            tasks.create_task(started(name, actors.start(name)))
        for name in names:
            tasks.create_task(started(name, workers.start(name)))
    return StartedRoles(
        trainer=trainer.result(),
        actors=actors,
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
