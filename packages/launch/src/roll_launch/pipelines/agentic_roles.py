"""The roles of a stage in environments, placed and kept serving."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.episode_roles import EnvironmentWorker
from roll_launch.pipelines import specs
from roll_launch.pipelines.policy_roles import group_of, start_policy_roles
from roll_launch.pipelines.stage import RunContext
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, Trainer
from roll_launch.side_roles import TeacherRole


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
    """Starts all roles of a stage at once; see `start_policy_roles`."""
    start_worker = partial(context.runtime.start_environment_worker, spec=specs.environment_worker(plan))
    workers = group_of("environment worker", start_worker, plan, context)
    names = [f"environment-{index}" for index in range(plan.stage.episodes.workers)]
    started = await start_policy_roles(plan, context, checkpoint=checkpoint, workers=workers, names=names)
    return AgenticRoles(
        trainer=started.trainer, actors=started.actors, workers=workers, teachers=started.teachers
    )
