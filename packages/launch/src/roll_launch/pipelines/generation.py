"""Held-out accuracy of a model that is trained without rollouts: engines and graders for evaluations."""

from contextlib import AsyncExitStack
from functools import partial

from roll_launch.errors import RollLaunchError
from roll_launch.pipelines import specs
from roll_launch.pipelines.collection import RolloutWork
from roll_launch.pipelines.evaluation import Evaluation
from roll_launch.pipelines.placed_models import start_placed_models
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import RlvrPlan
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, RewardWorker
from roll_launch.side_roles import OfflineTrainer
from roll_launch.weight_sync import WeightSync, tolerance_of


class GenerationEvaluation:
    """Samples and grades held-out prompts under the trainer's present weights.

    Args:
        plan: The stage as one that samples; see `generation_stage.py`.
        context: Of the run.
        trainer: Whose weights.
        entered: Entered around the stage: engines and graders that die are replaced until it ends.
        version: The last one that was published before a resume.
    """

    def __init__(
        self,
        plan: RlvrPlan,
        context: RunContext,
        trainer: OfflineTrainer,
        entered: AsyncExitStack,
        *,
        version: int,
    ) -> None:
        self._plan = plan
        self._context = context
        self._trainer = trainer
        self._entered = entered
        self.version = version

    async def start(self) -> None:
        """Starts engines and graders.

        Raises:
            WaitExpired: One did not start in time.
            RoleError: One failed.
        """
        plan, context, stage = self._plan, self._context, self._plan.stage
        runtime = context.runtime
        actors: RoleGroup[Actor] = RoleGroup(
            "rollout actor",
            start=partial(runtime.start_actor, spec=specs.actor(plan, processors=context.processors)),
            health=stage.health,
            waits=context.waits,
            start_deadline_s=stage.deadlines.start_s,
        )
        workers: RoleGroup[RewardWorker] = RoleGroup(
            "reward worker",
            start=partial(runtime.start_reward_worker, spec=specs.reward_worker(plan)),
            health=stage.health,
            waits=context.waits,
            start_deadline_s=stage.deadlines.start_s,
        )
        async with context.waits.wait(
            "start of engines and graders for evaluations", deadline_s=stage.deadlines.start_s
        ):
            for index in range(stage.rollout.replicas):
                await actors.start(f"actor-{index}")
            for index in range(stage.rewards.workers):
                await workers.start(f"reward-{index}")
        models = await start_placed_models(plan, context, workers)
        await self._entered.enter_async_context(models)
        await self._entered.enter_async_context(actors)
        await self._entered.enter_async_context(workers)
        self._sync = WeightSync(
            self._trainer,
            actors,
            probe_ids=plan.prompts.prompts[0].token_ids,
            # The learner of given rows divides by no temperature.
            temperature=1.0,
            tolerance=tolerance_of(stage.rollout, plan.model.dtype),
            waits=context.waits,
            deadline_s=stage.deadlines.sync_s,
        )
        actors.bring_up_with(self._sync.bring_up)
        work = RolloutWork(
            actors,
            workers,
            sampling=plan.sampling,
            clock=RolloutClock(stage.rollout.engine.max_batch),
        )
        evaluation = Evaluation.of(plan, work, context.waits)
        if evaluation is None:
            raise RollLaunchError(f"stage {stage.name} samples for evaluations, but holds no prompts out")
        self._evaluation = evaluation

    async def run(self, step: int) -> dict[str, float]:
        """eval/accuracy and so on, of the weights after `step`."""
        self.version += 1
        await self._sync.publish(self.version)
        return await self._evaluation.run(step)
