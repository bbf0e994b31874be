"""Training on given rows: preferences between responses, or responses whose tokens teachers are asked about.

A step: rows -> (teachers ->) trainer. Evaluations on held-out rows, and on responses that the model samples,
come before, between and after the steps.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress

from roll_learners.sample import Sample
from roll_learners.update import StepResult

from roll_launch.alarms import StageAlarms
from roll_launch.config import PreferenceStage
from roll_launch.data import PromptOrder
from roll_launch.history import StageHistory
from roll_launch.offline_plan import OfflinePlan, side_by_side
from roll_launch.pipelines import specs
from roll_launch.pipelines.checkpoints import CheckpointSchedule
from roll_launch.pipelines.generation import GenerationEvaluation
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.progress import StageProgress
from roll_launch.roles import Handle
from roll_launch.side_roles import OfflineTrainer, TeacherRole

PREPARED_TOGETHER = 512
"""Rows whose reference is computed in one call, so that a wait is never longer than that takes."""

SHOWN = ("eval/rewards/accuracies", "eval/rewards/margins", "eval/sequence_loss", "eval/nll", "eval/accuracy")
"""Of an evaluation on the screen."""


class OfflinePipeline:
    """Runs one stage on given rows."""

    def __init__(self, plan: OfflinePlan, context: RunContext, history: StageHistory | None) -> None:
        self._plan = plan
        self._context = context
        self._history = history
        self._digest = plan.digest()
        self._order = PromptOrder(len(plan.rows), plan.seed)
        self._teachers: list[TeacherRole] = []
        self._ahead: asyncio.Task[list[Handle]] | None = None
        self._generation: GenerationEvaluation | None = None
        self._version = 0
        self.result = StageResult()
        self._alarms = StageAlarms(
            plan.stage.alarms, stage=plan.stage.name, screen=context.display, records=self.result.alarms
        )
        if history is not None:
            self._alarms.restore(history.progress.alarms)
            self.result.restore(history.progress)
            self._version = history.progress.version

    async def run(self) -> None:
        """Trains for the planned number of steps, evaluates, and writes the model."""
        stage, context, result = self._plan.stage, self._context, self.result
        async with AsyncExitStack() as entered:
            trainer = await self._start(entered)
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
            await self._prepare(trainer)
            if self._history is None:
                await self._evaluate(0, "before", trainer)
            result.times.end_step()
            try:
                for step in range(result.steps + 1, stage.steps + 1):
                    context.interrupt.stop_at_boundary()
                    await self._step(step, trainer)
                    await checkpoints.after_step(step)
            finally:
                await self._forget_ahead()
            await self._evaluate(stage.steps, "after", trainer)
        async with context.waits.wait("peak memory of the trainer", deadline_s=stage.deadlines.step_s):
            result.peak_rss_gb = max(result.peak_rss_gb, await trainer.peak_rss_gb())
        await checkpoints.final()

    async def _start(self, entered: AsyncExitStack) -> OfflineTrainer:
        plan, context, stage = self._plan, self._context, self._plan.stage
        spec = specs.offline_trainer(
            plan,
            processors=context.processors,
            checkpoint=self._history.checkpoint if self._history else None,
        )
        async with context.waits.wait("start of the trainer", deadline_s=stage.deadlines.start_s):
            trainer = await context.runtime.start_offline_trainer(spec)
        for number, teacher in enumerate(spec.teachers):
            if teacher.own:
                name = f"teacher-{number}"
                async with context.waits.wait(f"start of {name}", deadline_s=stage.deadlines.start_s):
                    self._teachers.append(await context.runtime.start_teacher(name, teacher))
        if plan.generation is not None:
            self._generation = GenerationEvaluation(
                plan.generation, context, trainer, entered, version=self._version
            )
            await self._generation.start()
        return trainer

    async def _prepare(self, trainer: OfflineTrainer) -> None:
        """What the trainer wants to compute of all rows of the stage.

        Also of those whose steps were done before a resume: batches of the same rows round the same way.
        """
        stage = self._plan.stage
        if not (isinstance(stage, PreferenceStage) and stage.reference_once):
            return
        used = sorted({self._order.row(number) for number in range(stage.steps * stage.batch_size)})
        rows = [*(self._plan.rows[row] for row in used), *self._plan.heldout]
        for start in range(0, max(len(rows), 1), PREPARED_TOGETHER):
            samples = side_by_side(rows[start : start + PREPARED_TOGETHER])
            ends = start + PREPARED_TOGETHER >= len(rows)
            with self.result.times.phase("ref"):
                async with self._context.waits.wait(
                    "log-probs of the reference", deadline_s=stage.deadlines.evaluation_s
                ):
                    await trainer.prepare(samples, last=ends)

    async def _step(self, step: int, trainer: OfflineTrainer) -> None:
        stage, times = self._plan.stage, self.result.times
        samples = self._batch(step)
        metrics: dict[str, float] = {}
        with times.phase("step"):
            with times.phase("teacher"):
                signals = await self._signals(step)
            with times.phase("update_actor"):
                async with self._context.waits.wait(
                    f"update of step {step}", deadline_s=stage.deadlines.step_s
                ):
                    trained = await trainer.step(samples, signals)
            evaluation = stage.evaluation
            if evaluation is not None and step % evaluation.every == 0 and step < stage.steps:
                metrics = await self._evaluate(step, "during", trainer)
        self._finish(step, samples, trained, metrics)

    async def _signals(self, step: int) -> Sequence[Handle]:
        """What teachers of their own processes say of a step; those of the next one begin at once."""
        if not self._teachers:
            return ()
        present = self._ahead or asyncio.create_task(self._asked(step))
        signals = await present
        more = step < self._plan.stage.steps
        self._ahead = asyncio.create_task(self._asked(step + 1)) if more else None
        return signals

    async def _asked(self, step: int) -> list[Handle]:
        samples = self._batch(step)
        deadline_s = self._plan.stage.deadlines.step_s
        async with self._context.waits.wait(f"teachers of step {step}", deadline_s=deadline_s):
            return await asyncio.gather(*(teacher.top_logits(samples) for teacher in self._teachers))

    async def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            # A teacher that died meanwhile is no news any more: the step that needs it is not taken.
            with suppress(asyncio.CancelledError, Exception):
                await ahead

    async def _evaluate(self, step: int, when: str, trainer: OfflineTrainer) -> dict[str, float]:
        """Metrics under eval/; {} if nothing is held out."""
        stage, metrics = self._plan.stage, {}
        with self.result.times.phase("eval"):
            if self._plan.heldout:
                async with self._context.waits.wait(
                    f"evaluation after step {step}", deadline_s=stage.deadlines.evaluation_s
                ):
                    found = await trainer.evaluate(side_by_side(self._plan.heldout))
                metrics = {f"eval/{name.removeprefix('actor/')}": value for name, value in found.items()}
            if self._generation is not None:
                metrics |= await self._generation.run(step)
                self._version = self._generation.version
        if not metrics:
            return {}
        shown = ", ".join(f"{name[5:]} {metrics[name]:.3f}" for name in SHOWN if name in metrics)
        self._context.display.say(f"{stage.name}  step {step}/{stage.steps}  evaluation: {shown}")
        if when != "during":
            for name in SHOWN:
                if name in metrics:
                    self.result.metrics[f"{name}/{when}"] = metrics[name]
            self._context.log.log(stage.name, step, metrics)
        return metrics

    def _finish(
        self, step: int, samples: list[Sample], trained: StepResult, metrics: dict[str, float]
    ) -> None:
        """Books the step."""
        tokens = sum(len(sample.token_ids) for sample in samples)
        self.result.steps = step
        self.result.samples += len(samples)
        self.result.tokens += tokens
        timing = self.result.times.end_step()
        metrics = trained.metrics | metrics | timing
        metrics["perf/total_num_tokens"] = float(tokens)
        metrics["perf/throughput"] = tokens / max(timing["timing_s/step"], 1e-9)

        def origin(position: int) -> str:
            row = self._row(step, position % self._plan.stage.batch_size)
            second = ("", " (rejected)")[position // self._plan.stage.batch_size]
            return self._plan.origins[row] + second

        metrics |= self._alarms.observe(step, metrics, trained, origin)
        self._context.log.log(self._plan.stage.name, step, metrics)
        self._context.display.step(step, metrics)
        self._alarms.refuse_standstill()

    def _batch(self, step: int) -> list[Sample]:
        """The samples of a step, counted from 1: rows epoch after epoch in shuffled order."""
        rows = [self._plan.rows[self._row(step, place)] for place in range(self._plan.stage.batch_size)]
        return side_by_side(rows)

    def _row(self, step: int, place: int) -> int:
        """Which row is at a place of a step's batch."""
        return self._order.row((step - 1) * self._plan.stage.batch_size + place)

    def _progress(self, files: Mapping[str, int]) -> StageProgress:
        return self.result.progress(
            self._plan.stage.name,
            version=self._version,
            scheduler=None,
            data=self._digest,
            files=files,
            run_seconds=self._context.run_seconds(),
            alarms=self._alarms.state(),
        )
