"""Supervised fine-tuning: batches of demonstrations through the trainer's supervised step."""

from collections.abc import Iterator

from roll_learners.sample import Sample

from roll_launch.data import PromptOrder
from roll_launch.pipelines import specs
from roll_launch.pipelines.checkpoints import CheckpointSchedule
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import SftPlan
from roll_launch.roles import Trainer


class SftPipeline:
    """Runs one supervised stage."""

    def __init__(self, plan: SftPlan, context: RunContext) -> None:
        self._plan = plan
        self._context = context
        self.result = StageResult()

    async def run(self) -> None:
        """Trains for the planned number of steps and writes the model."""
        stage, context = self._plan.stage, self._context
        trainer = await self._start_trainer()
        checkpoints = CheckpointSchedule(stage.name, stage.checkpoint, trainer, context)
        context.display.begin(stage.name, stage.steps)
        batches = self._batches()
        for step in range(1, stage.steps + 1):
            context.interrupt.stop_at_boundary()
            await self._step(step, next(batches), trainer)
            await checkpoints.after_step(step, self.result.times)
        await checkpoints.final(self.result.times)
        async with context.waits.wait("peak memory of the trainer", deadline_s=stage.deadlines.step_s):
            self.result.peak_rss_gb = await trainer.peak_rss_gb()

    async def _step(self, step: int, batch: list[Sample], trainer: Trainer) -> None:
        stage, result = self._plan.stage, self.result
        with result.times.phase("step"), result.times.phase("update_actor"):
            async with self._context.waits.wait(f"supervised step {step}", deadline_s=stage.deadlines.step_s):
                metrics = await trainer.supervised_step(batch)
        tokens = sum(len(sample.token_ids) for sample in batch)
        result.steps = step
        result.samples += len(batch)
        result.tokens += tokens
        timing = result.times.end_step()
        metrics |= timing | {
            "perf/total_num_tokens": float(tokens),
            "perf/throughput": tokens / max(timing["timing_s/step"], 1e-9),
        }
        self._context.log.log(stage.name, step, metrics)
        self._context.display.step(step, metrics)

    async def _start_trainer(self) -> Trainer:
        stage, context = self._plan.stage, self._context
        spec = specs.supervised_trainer(self._plan, processors=context.processors)
        async with context.waits.wait("start of the trainer", deadline_s=stage.deadlines.start_s):
            return await context.runtime.start_trainer(spec)

    def _batches(self) -> Iterator[list[Sample]]:
        """Batches of `batch_size` samples, epoch after epoch in shuffled order."""
        samples, size = self._plan.samples, self._plan.stage.batch_size
        order = PromptOrder(len(samples), self._plan.seed)
        for step in range(self._plan.stage.steps):
            yield [samples[order.row(step * size + index)] for index in range(size)]
