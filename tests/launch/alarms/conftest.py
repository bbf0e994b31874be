"""Steps of a run that learned, and alarms that watch them."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from roll_launch.alarms import Alarm, AlarmRecord, StageAlarms
from roll_launch.config import PolicyAlarmsConfig, SupervisedAlarmsConfig
from roll_learners import StepResult

Metrics = dict[str, float]

TRACE = Path(__file__).parents[2] / "data" / "alarms" / "quickstart.jsonl"
"""The quickstart's 80 steps of reinforcement learning with seed 0: accuracy 0.37 to 0.96."""


@pytest.fixture
def healthy() -> list[Metrics]:
    return [json.loads(line) for line in TRACE.read_text(encoding="utf-8").splitlines()]


@dataclass
class Bench:
    """Alarms with a screen that remembers what it was shown."""

    config: SupervisedAlarmsConfig | None = field(default_factory=PolicyAlarmsConfig)
    shown: list[Alarm] = field(default_factory=list)
    over: list[tuple[str, int]] = field(default_factory=list)
    records: dict[str, AlarmRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alarms = StageAlarms(self.config, stage="rlvr", screen=self, records=self.records)
        self.step = 0

    def alarm(self, alarm: Alarm) -> None:
        self.shown.append(alarm)

    def alarm_over(self, name: str, step: int) -> None:
        self.over.append((name, step))

    def observe(self, metrics: Mapping[str, float], trained: StepResult | None = None) -> Metrics:
        self.step += 1
        done = trained or StepResult(metrics={}, updates=1)
        return self.alarms.observe(self.step, metrics, done, lambda position: f"sample {position}")

    def watch(self, steps: Iterable[Mapping[str, float]]) -> list[str]:
        """The names of the alarms that were shown, in order."""
        for metrics in steps:
            self.observe(metrics)
        return [alarm.name for alarm in self.shown]


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench
