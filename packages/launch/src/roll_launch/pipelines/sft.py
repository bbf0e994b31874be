"""Supervised fine-tuning: batches of demonstrations through the trainer's supervised step."""

from collections.abc import Mapping

from roll_learners.sample import Sample

from roll_launch.alarms import StageAlarms
from roll_launch.data import PromptOrder
from roll_launch.history import StageHistory
from roll_launch.pipelines import specs
from roll_launch.pipelines.checkpoints import CheckpointSchedule
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import SftPlan
from roll_launch.progress import StageProgress
from roll_launch.roles import Trainer


class SftPipeline:
    """Runs one supervised stage."""

    def __init__(self, plan: SftPlan, context: RunContext, history: StageHistory | None) -> None:
        self._plan = plan
        self._context = context
        self._history = history
        self._digest = plan.digest()
        self._order = PromptOrder(len(plan.samples), plan.seed)
        self.result = StageResult()
        self._alarms = StageAlarms(
            plan.stage.alarms, stage=plan.stage.name, screen=context.display, records=self.result.alarms
        )
        if history is not None:
            self._alarms.restore(history.progress.alarms)
            self.result.restore(history.progress)

    async def run(self) -> None:
        """Trains for the planned number of steps and writes the model."""
        stage, context, result = self._plan.stage, self._context, self.result
        trainer = await self._start_trainer()
        checkpoints = CheckpointSchedule(
            stage.name,
            stage.checkpoint,
            trainer,
            context,
            progress=self._progress,
            times=result.times,
            last=result.steps,
        )
        context.display.begin(stage.name, stage.steps, done=result.steps)
        context.log.begin(stage.name, result.steps)
        for step in range(result.steps + 1, stage.steps + 1):
            context.interrupt.stop_at_boundary()
            await self._step(step, self._batch(step), trainer)
            await checkpoints.after_step(step)
        async with context.waits.wait("peak memory of the trainer", deadline_s=stage.deadlines.step_s):
            result.peak_rss_gb = max(result.peak_rss_gb, await trainer.peak_rss_gb())
        await checkpoints.final()

    async def _step(self, step: int, batch: list[Sample], trainer: Trainer) -> None:
        stage, result = self._plan.stage, self.result
        with result.times.phase("step"), result.times.phase("update_actor"):
            async with self._context.waits.wait(f"supervised step {step}", deadline_s=stage.deadlines.step_s):
                trained = await trainer.supervised_step(batch)
        tokens = sum(len(sample.token_ids) for sample in batch)
        result.steps = step
        result.samples += len(batch)
        result.tokens += tokens
        timing = result.times.end_step()
        metrics = (
            trained.metrics
            | timing
            | {
                "perf/total_num_tokens": float(tokens),
                "perf/throughput": tokens / max(timing["timing_s/step"], 1e-9),
            }
        )

        def origin(position: int) -> str:
            return self._plan.origins[self._row(step, position)]

        metrics |= self._alarms.observe(step, metrics, trained, origin)
        self._context.log.log(stage.name, step, metrics)
        self._context.display.step(step, metrics)
        self._alarms.refuse_standstill()

    async def _start_trainer(self) -> Trainer:
        stage, context = self._plan.stage, self._context
        spec = specs.supervised_trainer(
            self._plan,
            processors=context.processors,
            checkpoint=self._history.checkpoint if self._history else None,
        )
        async with context.waits.wait("start of the trainer", deadline_s=stage.deadlines.start_s):
            return await context.runtime.start_trainer(spec)

    def _batch(self, step: int) -> list[Sample]:
        """The `batch_size` samples of a step, counted from 1, epoch after epoch in shuffled order."""
        return [self._plan.samples[self._row(step, index)] for index in range(self._plan.stage.batch_size)]

    def _row(self, step: int, position: int) -> int:
        """Which sample is at a position of a step's batch."""
        return self._order.row((step - 1) * self._plan.stage.batch_size + position)

    def _progress(self, files: Mapping[str, int]) -> StageProgress:
        return self.result.progress(
            self._plan.stage.name,
            version=0,
            scheduler=None,
            data=self._digest,
            files=files,
            run_seconds=self._context.run_seconds(),
            alarms=self._alarms.state(),
        )
