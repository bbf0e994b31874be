"""What an update, and a step of several, leave behind: metrics, and what was skipped.

Torch-free, so that a driver that trains in another process can read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedUpdate:
    """An update that was not taken, because its loss or gradient was not finite.

    SkippedUpdate(update=12, what="loss", samples=(3, 17), loss=nan, gradient_norm=nan)

    Attributes:
        update: Optimizer steps that were taken before it.
        what: What was not finite; a gradient only if the loss was.
        samples: Ascending; the samples that make it so, or among which they are, by their positions in
            the batch that the step was given, whatever process computed them.
        loss: Of the whole mini-batch.
        gradient_norm: Of the whole mini-batch, before clipping.
    """

    update: int
    what: Literal["loss", "gradient"]
    samples: tuple[int, ...]
    loss: float
    gradient_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What `Learner.update` returns.

    UpdateResult(metrics={"loss": 0.2, "grad_norm": 0.7, "lr": 1e-6, "tokens": 812.0, "skipped_steps": 0.0})

    Attributes:
        metrics: By names without a prefix.
        skipped: Set if no step was taken; the weights are then what they were.
    """

    metrics: dict[str, float]
    skipped: SkippedUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What `policy_step` and `supervised_step` return.

    StepResult(metrics={"actor/grad_norm": 0.7, "critic/rewards/mean": 0.5}, updates=2)

    Attributes:
        metrics: By the names that people search for.
        updates: Optimizer steps taken.
        skipped: Updates that were not, in order.
    """

    metrics: dict[str, float]
    updates: int
    skipped: tuple[SkippedUpdate, ...] = ()
