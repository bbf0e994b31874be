"""Deadlines that follow what right answers need, as in RollPacker. An option of graders and pools."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from roll_rewards.errors import RewardError


@dataclass(slots=True, kw_only=True)
class AdaptiveDeadline:
    """The time limit of a test case, from the longest run of a right response to it.

    `limit = min(max(min_s, factor * anchor), max_s)`; the anchor of a case is the longest run among
    its right responses so far. Before the first right response the limit is `max_s`. A right response
    that needs longer than the limit is cut, so it cannot raise the anchor: `cuts` counts the runs that
    were cut below `max_s`, and a rising share of them says that `factor` is too small.

    Source: RollPacker (arXiv 2509.21009), section 4.3. Differs: the limit before any right response is
    not given there.

    Example: `AdaptiveDeadline(min_s=2, max_s=30).limit("case 7")` is 30.0 at first.

    Attributes:
        factor: Multiple of the anchor, at least 1.
        min_s: Lowest limit in seconds, above 0.
        max_s: Highest limit in seconds, at least `min_s`.
        cuts: Runs that were ended by a limit below `max_s`.

    Raises:
        RewardError: An option is out of its range.
    """

    factor: float = 1.5
    min_s: float = 2.0
    max_s: float = 30.0
    cuts: int = 0
    _anchors: dict[Hashable, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise RewardError(f"AdaptiveDeadline.factor must be at least 1, got {self.factor}")
        if not 0 < self.min_s <= self.max_s < math.inf:
            raise RewardError(
                "AdaptiveDeadline needs 0 < min_s <= max_s, both finite, "
                f"got min_s={self.min_s} and max_s={self.max_s}"
            )

    def limit(self, case: Hashable) -> float:
        """Seconds that the next run of a test case may take.

        Args:
            case: Names the test case.
        """
        anchor = self._anchors.get(case)
        if anchor is None:
            return self.max_s
        return min(max(self.min_s, self.factor * anchor), self.max_s)

    def anchor(self, case: Hashable) -> float | None:
        """The longest run of a right response in seconds; None before the first.

        Args:
            case: Names the test case.
        """
        return self._anchors.get(case)

    def record(self, case: Hashable, *, seconds: float, right: bool) -> None:
        """Take in one run.

        Args:
            case: Names the test case.
            seconds: How long it ran, at least 0; past the limit of the case it counts as cut.
            right: Whether the response was right.
        """
        limit = self.limit(case)
        if seconds > limit:
            self.cuts += limit < self.max_s
        elif right:
            self._anchors[case] = max(self._anchors.get(case, 0.0), seconds)
