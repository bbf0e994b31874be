"""A deadline for gradings that follows from how long correct answers took. Part of the policy."""

import math
from dataclasses import dataclass

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["AdaptiveDeadline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDeadline:
    """min(max(least_s, factor * anchor), most_s), the anchor being the longest grading of a correct answer.

    A grading that is cut by it is a failure of kind `"adaptive_deadline"`, not a reward of 0: it is retried
    as often as the policy says and then left out; `scheduler/adaptive_cuts` counts the cuts. For example
    AdaptiveDeadline(least_s=2.0, factor=1.5, most_s=30.0).

    Attributes:
        least_s: Shortest deadline, seconds, > 0.
        factor: Times the longest correct grading so far, >= 1.
        most_s: Longest deadline, seconds, >= least_s; the deadline before any answer was correct.

    Raises:
        SchedulerError: If a value is out of its range.

    Source: RollPacker, arXiv 2509.21009, section 4.3. Differs: there the limit is that of a test case and a
    cut run scores 0; here it is that of a grading, and a cut is no verdict.
    """

    least_s: float = 2.0
    factor: float = 1.5
    most_s: float = 30.0

    def __post_init__(self) -> None:
        for name, value, least, says in (
            ("least_s", self.least_s, math.ulp(0), "> 0"),
            ("factor", self.factor, 1, ">= 1"),
            ("most_s", self.most_s, self.least_s, f">= least_s, {self.least_s!r}"),
        ):
            if not (is_finite(value) and value >= least):
                raise SchedulerError(
                    f"AdaptiveDeadline.{name}: got {value!r}, allowed is a finite number {says}"
                )

    def seconds(self, anchor: float | None) -> float:
        """The deadline.

        Args:
            anchor: Seconds of the longest grading with a positive value so far, None before the first.
        """
        return self.most_s if anchor is None else min(max(self.least_s, self.factor * anchor), self.most_s)
