"""Where a stage stands: what a checkpoint holds besides the trainer's own state, as one JSON file.

`pipelines/checkpoints.py` writes it, `history.py` reads it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roll_scheduler import SchedulerSnapshot

from roll_launch.errors import RollLaunchError
from roll_launch.run_directory import write_json

PROGRESS = "progress.json"

CONFIG = "config.yaml"
"""Beside it: the configuration that the stage has run under."""


class ProgressError(RollLaunchError):
    """A progress file cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """A stage after `step` steps:

        StageProgress(stage="rlvr", step=40, version=40, scheduler=SchedulerSnapshot(first_group=640, ...),
        samples=5120, tokens=61440, metrics={"eval/accuracy/before": 0.38}, times={"gen": 21.4},
        run_seconds=70.2, peak_rss_gb=1.1, data="9f86d0...", files={"metrics.jsonl": 81920})

    Attributes:
        step: Steps that are done, 0 at the beginning.
        version: Policy version that was published last.
        scheduler: The data cursor, and what it counts; None in a stage without a scheduler, whose cursor is
            the step.
        samples: Trained so far.
        tokens: Trained so far, prompts included.
        metrics: What the summary keeps of the stage.
        times: Seconds by phase.
        run_seconds: Of the whole run so far, all attempts that led here together.
        peak_rss_gb: Of the trainer.
        data: Digest of the stage's data.
        files: Length in bytes of each growing file of the run directory; what stands after it is of steps
            that will be done again.
        alarms: What the alarms remember.
        prompts: State of a mixture or curriculum, {} without one.
    """

    stage: str
    step: int
    version: int = 0
    scheduler: SchedulerSnapshot | None = None
    samples: int = 0
    tokens: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    run_seconds: float = 0.0
    peak_rss_gb: float = 0.0
    data: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    alarms: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "StageProgress":
        """Reads what `save` wrote.

        Raises:
            ProgressError: The file is missing, not JSON, or not of this form.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            scheduler = values.pop("scheduler")
            if scheduler is not None:
                scheduler = SchedulerSnapshot(**scheduler)
            progress = cls(scheduler=scheduler, **values)
            numbers = (
                progress.step,
                progress.version,
                progress.samples,
                progress.tokens,
                *progress.files.values(),
            )
            if any(type(number) is not int or number < 0 for number in numbers):
                raise TypeError(f"got {numbers} for step, version, samples, tokens and lengths of files")
            return progress
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProgressError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
