"""The roles of a stage of reinforcement learning, placed and kept serving."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from roll_launch.pipelines import specs
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import RlvrPlan
from roll_launch.role_group import Living, RoleGroup
from roll_launch.roles import Actor, RewardWorker, Trainer
from roll_launch.waits import listed

Role = TypeVar("Role")
Worker = TypeVar("Worker", bound=Living)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlvrRoles:
    """What computes. The two groups are to be entered around the stage."""

    trainer: Trainer
    actors: RoleGroup[Actor]
    workers: RoleGroup[RewardWorker]


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
    start_actor = partial(runtime.start_actor, spec=specs.actor(plan, processors=context.processors))
    start_worker = partial(runtime.start_reward_worker, spec=specs.reward_worker(plan))
    trainer_spec = specs.policy_trainer(plan, processors=context.processors, checkpoint=checkpoint)
    actors = _group("rollout actor", start_actor, plan, context)
    workers = _group("reward worker", start_worker, plan, context)
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
        trainer = tasks.create_task(started("trainer", runtime.start_trainer(trainer_spec)))
        for name in (f"actor-{index}" for index in range(stage.rollout.replicas)):
            tasks.create_task(started(name, actors.start(name)))
        for name in (f"reward-{index}" for index in range(stage.rewards.workers)):
            tasks.create_task(started(name, workers.start(name)))
    return RlvrRoles(trainer=trainer.result(), actors=actors, workers=workers)


def _group(
    role: str, start: Callable[[str], Awaitable[Worker]], plan: RlvrPlan, context: RunContext
) -> RoleGroup[Worker]:
    return RoleGroup(
        role,
        start=start,
        health=plan.stage.health,
        waits=context.waits,
        start_deadline_s=plan.stage.deadlines.start_s,
    )
