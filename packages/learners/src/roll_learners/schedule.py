"""Optimizer settings and the learning rate of each update. Torch-free, for checking configurations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roll_learners.errors import LearnerError, unknown_name

ScheduleName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, gradient clipping and schedule; `OptimizerSettings(learning_rate=4e-4)` suffices.

    Attributes:
        learning_rate: The highest rate; 0 trains nothing, for a control.
        betas: Decay of AdamW's two running means, each 0 to below 1.
        weight_decay: At least 0; parameters of one dimension (norms, biases) are never decayed.
        eps: AdamW's, above 0.
        max_grad_norm: The gradient is scaled down to this norm; None leaves it.
        schedule: After the warm-up: "constant", or "linear" or "cosine" down to
            min_lr_ratio * learning_rate at update `total_steps`, and that from then on.
        warmup_steps: Updates with a rate that rises linearly to learning_rate.
        total_steps: Updates in the whole run; needed unless the schedule is constant.
        min_lr_ratio: 0 to 1.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    eps: float = 1e-8
    max_grad_norm: float | None = 1.0
    schedule: ScheduleName = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    min_lr_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in get_args(ScheduleName):
            raise unknown_name("schedule", self.schedule, get_args(ScheduleName))
        _check("learning_rate", self.learning_rate, 0 <= self.learning_rate < math.inf, "at least 0")
        _check(
            "betas", self.betas, len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "two in [0, 1)"
        )
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")
        _check("eps", self.eps, 0 < self.eps < math.inf, "above 0")
        norm = self.max_grad_norm
        _check("max_grad_norm", norm, norm is None or norm > 0, "above 0, or null")
        _check("warmup_steps", self.warmup_steps, self.warmup_steps >= 0, "at least 0")
        _check("min_lr_ratio", self.min_lr_ratio, 0 <= self.min_lr_ratio <= 1, "0 to 1")
        if self.schedule != "constant":
            total = self.total_steps
            known = total is not None and total > self.warmup_steps
            _check("total_steps", total, known, f"more than warmup_steps ({self.warmup_steps})")


def learning_rate(settings: OptimizerSettings, update: int) -> float:
    """The rate of an update, counted from 0.

    The first of W warm-up updates has 1/W of the full rate, the last has all of it.
    """
    if update < settings.warmup_steps:
        return settings.learning_rate * (update + 1) / settings.warmup_steps
    if settings.schedule == "constant" or settings.total_steps is None:
        return settings.learning_rate
    span = settings.total_steps - settings.warmup_steps
    progress = min(1.0, (update - settings.warmup_steps) / span)
    shape = 1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.learning_rate * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * shape)


def _check(name: str, value: object, valid: bool, allowed: str) -> None:
    if not valid:
        raise LearnerError(f"optimizer.{name} is {value}: allowed is {allowed}")
