"""What every pipeline is given and what it returns."""

from dataclasses import dataclass, field

from roll_launch.config import RunConfig
from roll_launch.display import Display
from roll_launch.interrupt import Interrupt
from roll_launch.roles import Runtime
from roll_launch.run_directory import RunDirectory
from roll_launch.timing import PhaseTimes
from roll_launch.tracking import MetricLog
from roll_launch.waits import Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The collaborators that the stages of one run share."""

    config: RunConfig
    directory: RunDirectory
    runtime: Runtime
    waits: Waits
    interrupt: Interrupt
    log: MetricLog
    display: Display
    processors: int


@dataclass(slots=True, kw_only=True)
class StageResult:
    """What a stage has done so far; kept up to date at each step boundary, so that it is true after any end.

    StageResult(steps=80, samples=10240, tokens=112640, metrics={"eval/accuracy/after": 0.96}, ...)
    """

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    peak_rss_gb: float = 0.0
