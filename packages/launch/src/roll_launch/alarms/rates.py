"""Rates that leave the level of the steps before."""

import math
from collections.abc import Mapping

from roll_launch.alarms.detector import Memory, Reading, mean, number, with_step
from roll_launch.config import FailureRateJumpConfig, ParseRateDropConfig

FEWEST_STEPS = 3
"""Steps before a rate has a level that it can leave."""

DEVIATIONS = 3.0
"""A rate of n samples that stays where it is moves by so many standard deviations once in 700 steps."""


class ParseRateDrop:
    """Graders find an answer in fewer responses than in the steps before.

    A rate that is low from the first step on has not dropped: a grader that never finds an answer gives equal
    scores. Faulty steps do not count towards the level, so a drop that stays is told until it is undone.
    """

    name = "parse_rate_drop"
    advice = (
        "Read rollouts/: the format of answers has changed, or responses are cut before they answer "
        "(response_length/clip_ratio)."
    )

    def __init__(self, config: ParseRateDropConfig) -> None:
        self.steps = config.steps
        self._drop = config.drop
        self._window = config.window
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """None until there is a level."""
        rate = number(metrics, "rewards/parsed_rate")
        if rate is None:
            return None
        before = [value for (value,) in self.memory if value is not None]
        level = mean(before) if len(before) >= FEWEST_STEPS else None
        threshold = 0.0 if level is None else level - max(self._drop, _by_chance(level, metrics))
        if rate >= threshold:
            self.memory = with_step(self.memory, rate, window=self._window)
        if level is None:
            return None
        return Reading(
            fault=rate < threshold,
            metric="rewards/parsed_rate",
            value=rate,
            threshold=threshold,
            said=f"graders found an answer in {rate:.0%} of the responses, in {level:.0%} before",
        )


class FailureRateJump:
    """More attempts than in the steps before ended without a result, in the engine or in a grader.

    The level begins at none, so failures of the first steps are seen too.
    """

    name = "failure_rate_jump"
    advice = (
        "See rollout/failed/* for the kind and logs/ for the cause; what fails is retried, then left out, so "
        "that the rest may be biased towards the easy and the short."
    )

    def __init__(self, config: FailureRateJumpConfig) -> None:
        self.steps = config.steps
        self._rise = config.rise
        self._window = config.window
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """Faulty steps do not count towards the level."""
        rate = number(metrics, "rollout/failure_rate")
        if rate is None:
            return None
        before = [value for (value,) in self.memory if value is not None]
        level = mean(before) if before else 0.0
        threshold = level + max(self._rise, _by_chance(level, metrics))
        if rate <= threshold:
            self.memory = with_step(self.memory, rate, window=self._window)
        return Reading(
            fault=rate > threshold,
            metric="rollout/failure_rate",
            value=rate,
            threshold=threshold,
            said=f"{rate:.0%} of the attempts had no result, {level:.0%} before",
        )


def _by_chance(level: float, metrics: Mapping[str, float]) -> float:
    """How far a rate of this many samples strays by chance alone."""
    samples = number(metrics, "rewards/graded")
    if samples is None or samples < 1:
        return 0.0
    spread = max(0.0, level * (1 - level)) / samples
    return DEVIATIONS * math.sqrt(spread)
