"""The roles of a stage in environments, placed and kept serving."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.episode_roles import EnvironmentWorker
from roll_launch.pipelines import specs
from roll_launch.pipelines.rlvr_roles import group_of, start_with_critics
from roll_launch.pipelines.stage import RunContext
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, Trainer
from roll_launch.side_roles import TeacherRole
from roll_launch.waits import listed

Role = TypeVar("Role")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticRoles:
    """What computes."""

    trainer: Trainer
    actors: RoleGroup[Actor]
    workers: RoleGroup[EnvironmentWorker]
    teachers: tuple[TeacherRole, ...] = ()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Keeps what may be replaced serving while it is entered."""
        async with self.actors, self.workers:
            yield


async def start_agentic_roles(
    plan: AgenticPlan, context: RunContext, *, checkpoint: Path | None
) -> AgenticRoles:
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
    start_worker = partial(runtime.start_environment_worker, spec=specs.environment_worker(plan))
    trainer_spec = specs.policy_trainer(plan, processors=context.processors, checkpoint=checkpoint)
    actors = group_of("rollout actor", start_actor, plan, context)
    workers = group_of("environment worker", start_worker, plan, context)
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
        for name in (f"actor-{index}" for index in range(stage.rollout.replicas)):
            tasks.create_task(started(name, actors.start(name)))
        for name in (f"environment-{index}" for index in range(stage.episodes.workers)):
            tasks.create_task(started(name, workers.start(name)))
    return AgenticRoles(trainer=trainer.result(), actors=actors, workers=workers)
