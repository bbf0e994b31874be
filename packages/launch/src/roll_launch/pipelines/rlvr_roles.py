"""The roles of a stage of reinforcement learning, placed and kept serving."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from roll_launch.pipelines import specs
from roll_launch.pipelines.placed_models import PlacedModelGroups, start_placed_models
from roll_launch.pipelines.policy_roles import group_of, start_policy_roles
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import RlvrPlan
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, RewardWorker, Trainer
from roll_launch.side_roles import TeacherRole


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
    """Starts all roles of a stage at once; see `start_policy_roles`."""
    start_worker = partial(context.runtime.start_reward_worker, spec=specs.reward_worker(plan))
    workers = group_of("reward worker", start_worker, plan, context)
    names = [f"reward-{index}" for index in range(plan.stage.rewards.workers)]
    started = await start_policy_roles(plan, context, checkpoint=checkpoint, workers=workers, names=names)
    return RlvrRoles(
        trainer=started.trainer,
        actors=started.actors,
        workers=workers,
        models=await start_placed_models(plan, context, workers),
        teachers=started.teachers,
    )
