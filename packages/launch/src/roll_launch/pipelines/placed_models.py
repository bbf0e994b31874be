"""Reward models in processes of their own: started, replaced when they die, made known to who asks them."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from roll_launch.failures import RoleDied
from roll_launch.pipelines import specs
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import RlvrPlan
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Handle, RewardWorker
from roll_launch.side_roles import RewardModelRole


class PlacedModelGroups:
    """All placed reward models of a stage, to be entered around it.

    Reward workers learn of each model that leaves and of each that comes; a worker that is replaced learns of
    all of them before it serves.

    Args:
        groups: The replicas of each model, by the name that graders call it.
        workers: Who asks them.
    """

    def __init__(
        self, groups: dict[str, RoleGroup[RewardModelRole]], workers: RoleGroup[RewardWorker]
    ) -> None:
        self._groups = groups
        self._workers = workers
        self._entered = AsyncExitStack()
        self._telling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "PlacedModelGroups":
        for group in self._groups.values():
            await self._entered.enter_async_context(group)
            self._entered.enter_context(group.told(lambda name, why: self._tell(), lambda name: self._tell()))
        if self._groups:
            self._workers.bring_up_with(lambda name, worker: worker.serve_models(self._live()))
            await self._tell_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self._entered.__aexit__(*error)  # type: ignore[arg-type]  # passed on as they came

    def _live(self) -> dict[str, Sequence[Handle]]:
        return {name: [model.handle for model in group.live.values()] for name, group in self._groups.items()}

    def _tell(self) -> None:
        task = asyncio.get_running_loop().create_task(self._tell_all())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_all(self) -> None:
        for name, worker in dict(self._workers.live).items():
            try:
                await worker.serve_models(self._live())
            except RoleDied as error:
                self._workers.lost(name, worker, str(error))


async def start_placed_models(
    plan: RlvrPlan, context: RunContext, workers: RoleGroup[RewardWorker]
) -> PlacedModelGroups:
    """Starts the reward models of a stage that are roles of their own; none where there are none.

    Raises:
        WaitExpired: One did not start in time.
        RoleError: One failed.
    """
    stage = plan.stage
    groups: dict[str, RoleGroup[RewardModelRole]] = {}
    for name, (spec, replicas) in specs.placed_reward_models(plan).items():
        groups[name] = RoleGroup(
            f"reward model {name}",
            start=partial(context.runtime.start_reward_model, spec=spec),
            health=stage.health,
            waits=context.waits,
            start_deadline_s=stage.deadlines.start_s,
        )
        async with context.waits.wait(f"start of reward model {name}", deadline_s=stage.deadlines.start_s):
            for index in range(replicas):
                await groups[name].start(f"reward-model-{name}-{index}")
    return PlacedModelGroups(groups, workers)
