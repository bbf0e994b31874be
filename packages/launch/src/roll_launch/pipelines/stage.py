"""What every pipeline is given and what it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_scheduler import SchedulerSnapshot

from roll_launch.alarms import AlarmRecord, restored_records
from roll_launch.config import RunConfig
from roll_launch.display import Display
from roll_launch.interrupt import Interrupt
from roll_launch.progress import StageProgress
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory
from roll_launch.timing import PhaseTimes
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The collaborators that the stages of one run share; `run_seconds` tells how long it has run in all,
    `config_text` is what checkpoints keep of the configuration, credentials masked."""

    config: RunConfig
    directory: RunDirectory
    runtime: Runtime
    waits: Waits
    interrupt: Interrupt
    log: MetricLog
    display: Display
    processors: int
    run_seconds: Callable[[], float]
    config_text: str


@dataclass(slots=True, kw_only=True)
class StageResult:
    """What a stage has done so far; kept up to date at each step boundary, so that it is true after any end.

    StageResult(steps=80, samples=10240, tokens=112640, metrics={"eval/accuracy/after": 0.96}, ...)
    """

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    alarms: dict[str, AlarmRecord] = field(default_factory=dict)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    peak_rss_gb: float = 0.0

    def restore(self, progress: StageProgress) -> None:
        """Goes on counting from where a stage stood."""
        self.steps, self.samples, self.tokens = progress.step, progress.samples, progress.tokens
        self.metrics = dict(progress.metrics)
        # In place, because the stage's alarms write into it.
        self.alarms.update(restored_records(progress.alarms))
        self.peak_rss_gb = progress.peak_rss_gb
        self.times.restore(progress.times)

    def progress(
        self,
        stage: str,
        *,
        version: int,
        scheduler: SchedulerSnapshot | None,
        data: str,
        files: Mapping[str, int],
        run_seconds: float,
        alarms: Mapping[str, Any],
        prompts: Mapping[str, Any] | None = None,
    ) -> StageProgress:
        """Where the stage stands, for a checkpoint."""
        return StageProgress(
            stage=stage,
            step=self.steps,
            version=version,
            scheduler=scheduler,
            samples=self.samples,
            tokens=self.tokens,
            metrics=dict(self.metrics),
            times=self.times.totals(),
            run_seconds=run_seconds,
            peak_rss_gb=self.peak_rss_gb,
            data=data,
            files=files,
            alarms=alarms,
            prompts=prompts or {},
        )
