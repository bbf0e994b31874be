"""One run from its plan to its summary: runtime, stages in order, and the account of how it ended."""

import asyncio
import logging
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console

from roll_launch.config import RayRuntimeConfig, RunConfig
from roll_launch.display import Display
from roll_launch.failures import RoleError, first_cause
from roll_launch.interrupt import Interrupt, Interrupted
from roll_launch.local_runtime import LocalRuntime
from roll_launch.pipelines.rlvr import RlvrPipeline
from roll_launch.pipelines.sft import SftPipeline
from roll_launch.pipelines.stage import RunContext, StageResult
from roll_launch.plan import SftPlan, StagePlan
from roll_launch.processors import processors
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory, write_json
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits

logger = logging.getLogger(__name__)

CLOSE_S = 4.0
"""Seconds for ending the roles; with the interrupt's grace time this keeps Ctrl-C under ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: Outcome(status="failed", cause="actor-0 died during generate: ...", account="...")."""

    status: str
    cause: str | None = None
    detail: str = ""
    account: str = ""


class Run:
    """A planned run.

    Args:
        config: The whole configuration.
        plans: Its stages, with their data.
        directory: Where everything is written.
        console: Where progress is shown.
    """

    def __init__(
        self, config: RunConfig, plans: list[StagePlan], directory: RunDirectory, console: Console
    ) -> None:
        self._config = config
        self._plans = plans
        self._directory = directory
        self._display = Display(console)
        self._interrupt = Interrupt()
        self._waits = Waits()
        self.results: dict[str, StageResult] = {}

    async def execute(self) -> Outcome:
        """Runs all stages; writes summary.json however they end."""
        began = time.monotonic()
        tensorboard = self._directory.tensorboard if self._config.tracking.tensorboard else None
        try:
            with (
                self._interrupt.installed(),
                MetricLog(self._directory.metrics, tensorboard=tensorboard) as log,
            ):
                async with self._waits.watch():
                    await self._run_stages(log)
            outcome = Outcome(status="finished")
        # The boundary of a run: whatever ended it goes into the summary, by its first cause.
        except (Exception, asyncio.CancelledError) as error:
            outcome = self._outcome_of(error)
        finally:
            self._display.end()
        seconds = time.monotonic() - began
        write_json(self._directory.summary, self._summary(outcome, seconds))
        return replace(outcome, account=self._account(seconds))

    async def _run_stages(self, log: MetricLog) -> None:
        runtime = await self._start_runtime()
        try:
            context = RunContext(
                config=self._config,
                directory=self._directory,
                runtime=runtime,
                waits=self._waits,
                interrupt=self._interrupt,
                log=log,
                display=self._display,
                threads=processors(),
            )
            for plan in self._plans:
                pipeline = (
                    SftPipeline(plan, context) if isinstance(plan, SftPlan) else RlvrPipeline(plan, context)
                )
                self.results[plan.stage.name] = pipeline.result
                await pipeline.run()
                async with self._waits.wait(f"end of the roles of {plan.stage.name}", deadline_s=CLOSE_S * 4):
                    await runtime.stop_roles()
        finally:
            await self._close(runtime)

    async def _start_runtime(self) -> Runtime:
        runtime = self._config.runtime
        if not isinstance(runtime, RayRuntimeConfig):
            return LocalRuntime()
        # Ray is imported only by runs that use it.
        from roll_launch.ray.runtime import start_ray_runtime

        async with self._waits.wait("start of Ray", deadline_s=runtime.start_deadline_s):
            return await start_ray_runtime(
                runtime, self._config.stages, keep_logs=self._directory.worker_logs
            )

    async def _close(self, runtime: Runtime) -> None:
        try:
            async with self._waits.wait("end of the roles", deadline_s=CLOSE_S):
                await runtime.close()
        # The run's own outcome matters more than a fault while it is taken down; processes end with this one.
        except Exception as error:
            logger.warning("the roles did not end cleanly: %s", error)

    def _outcome_of(self, error: BaseException) -> Outcome:
        if self._interrupt.requested and isinstance(error, Interrupted | asyncio.CancelledError):
            return Outcome(status="interrupted", cause="interrupted by a signal")
        cause = first_cause(error)
        # Only the log gets the traceback; the screen shows the first cause.
        logger.info("the run failed", exc_info=error)
        detail = cause.detail if isinstance(cause, RoleError) else ""
        return Outcome(status="failed", cause=f"{type(cause).__name__}: {cause}", detail=detail)

    def _account(self, seconds: float) -> str:
        """What was done, in a line: accuracies, samples, tokens, seconds."""
        parts: list[str] = []
        for name, result in self.results.items():
            accuracies = [value for key, value in result.metrics.items() if key.startswith("eval/accuracy/")]
            if accuracies:
                parts.append(f"{name} accuracy {' -> '.join(f'{value:.3f}' for value in accuracies)}")
        samples = sum(result.samples for result in self.results.values())
        tokens = sum(result.tokens for result in self.results.values())
        return ", ".join([*parts, f"{samples:,} samples", f"{tokens:,} tokens", f"{seconds:.0f} s"])

    def _summary(self, outcome: Outcome, seconds: float) -> dict[str, object]:
        """The account of a run: the last evaluation, totals over all stages, and each stage by itself."""
        stages = {name: _stage_summary(result) for name, result in self.results.items()}
        timing: dict[str, float] = {}
        evaluation: dict[str, float] = {}
        for result in self.results.values():
            evaluation |= result.metrics
            for name, spent in result.times.totals().items():
                timing[name] = round(timing.get(name, 0.0) + spent, 3)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        return {
            "status": outcome.status,
            "cause": outcome.cause,
            "name": self._config.name,
            "seed": self._config.seed,
            "runtime": self._config.runtime.kind,
            "steps": sum(result.steps for result in self.results.values()),
            **evaluation,
            "samples": sum(result.samples for result in self.results.values()),
            "tokens": sum(result.tokens for result in self.results.values()),
            "seconds": round(seconds, 2),
            **timing,
            "peak_rss_gb": round(max([own, *(result.peak_rss_gb for result in self.results.values())]), 3),
            "stages": stages,
        }


def _stage_summary(result: StageResult) -> Mapping[str, object]:
    return {
        "steps": result.steps,
        "samples": result.samples,
        "tokens": result.tokens,
        **result.metrics,
        **{name: round(spent, 3) for name, spent in result.times.totals().items()},
        "peak_rss_gb": round(result.peak_rss_gb, 3),
    }
