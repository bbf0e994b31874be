"""What looks at the metrics of a step: a detector, and what it reads from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Memory = list[list[float | None]]
"""What a detector keeps of earlier steps, as JSON can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a detector makes of one step.

    Reading(fault=True, metric="actor/entropy", value=0.011, threshold=0.015, said="the entropy is ...")

    Attributes:
        fault: Whether the step shows the fault.
        metric: The name in metrics.jsonl of what shows it.
        value: Of that metric.
        threshold: The limit that it is compared with.
        said: What is wrong, as a clause for people; of no account without a fault.
    """

    fault: bool
    metric: str
    value: float
    threshold: float
    said: str


class Detector(Protocol):
    """Sees one kind of fault in the metrics of a stage's steps, which it is shown in order."""

    @property
    def name(self) -> str:
        """Of the alarm, the metric `alarm/NAME` and the key of the configuration."""
        ...

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        ...

    @property
    def steps(self) -> int:
        """Steps in a row that must show the fault before it is an alarm."""
        ...

    memory: Memory
    """What it keeps of earlier steps; assigned to by a resume."""

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """What this step shows; None if the metrics that it needs are absent or NaN."""
        ...


def number(metrics: Mapping[str, float], name: str) -> float | None:
    """A metric that is there and finite, else None."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def with_step(memory: Memory, *values: float | None, window: int) -> Memory:
    """The last `window` steps, this one included."""
    return [*memory, list(values)][-window:]


def mean(values: list[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)
