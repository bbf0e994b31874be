"""An alarm that is told, and the account of one that stays."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from roll_launch.alarms.detector import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A fault that a step's metrics show.

    Alarm(name="entropy_collapse", stage="rlvr", step=31, metric="actor/entropy", value=0.011,
    threshold=0.015, message="the entropy is 1.5 % of that of the first 5 steps. Lower the learning rate ...")
    """

    name: str
    stage: str
    step: int
    metric: str
    value: float
    threshold: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRecord:
    """All that a stage has seen of one alarm.

    AlarmRecord(name="entropy_collapse", stage="rlvr", count=12, first_step=31, last_step=44,
    metric="actor/entropy", worst=0.004, excess=0.7)

    Attributes:
        name: Of the alarm.
        stage: Of the run.
        count: Steps that showed the fault while the alarm was on: lines of metrics.jsonl with `alarm/NAME`.
        first_step: The first of them.
        last_step: The last of them.
        metric: The one that showed the worst.
        worst: Its value, the farthest from its limit; None where that is no number.
        excess: How far that is, in limits.
    """

    name: str
    stage: str
    count: int
    first_step: int
    last_step: int
    metric: str
    worst: float | None
    excess: float | None

    @classmethod
    def begun(cls, name: str, stage: str, step: int, reading: Reading) -> "AlarmRecord":
        """After its first step."""
        return cls(
            name=name,
            stage=stage,
            count=1,
            first_step=step,
            last_step=step,
            metric=reading.metric,
            worst=_number(reading.value),
            excess=_number(_excess(reading)),
        )

    def extended(self, step: int, reading: Reading) -> "AlarmRecord":
        """After one more step."""
        more = replace(self, count=self.count + 1, last_step=step)
        excess = _excess(reading)
        # An excess that is no number was the worst there can be.
        if self.excess is None or not excess > self.excess:
            return more
        return replace(more, metric=reading.metric, worst=_number(reading.value), excess=_number(excess))

    def summary(self) -> Mapping[str, Any]:
        """What summary.json says of it."""
        values = asdict(self)
        del values["excess"]
        return values


def _excess(reading: Reading) -> float:
    return abs(reading.value - reading.threshold) / (abs(reading.threshold) or 1.0)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
