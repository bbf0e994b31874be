"""Filters: which complete groups carry a signal. Consumed by the core when a group or a batch completes."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BatchFilter", "GroupFilter", "MeanOutside", "MostUncertain", "TruncatedShare", "ZeroSpread"]

TIE = 1e-9
"""Standard deviations that differ by no more count as equal."""


@runtime_checkable
class GroupFilter(Protocol):
    """Decides whether a complete group is kept; a group that is not kept is replaced by the next prompt.

    `roll_scheduler.conformance.filters.check_filter` tests an implementation.
    """

    @property
    def name(self) -> str:
        """Word that dropped groups are counted by (as `filter:<name>`)."""
        ...

    def keep(self, values: "np.ndarray", truncated: "np.ndarray") -> bool:
        """Whether the group is kept.

        Args:
            values: float64 [G], rewards of the members that have one, in member order.
            truncated: bool [G], whether the member ended at the length limit.
        """
        ...


@runtime_checkable
class BatchFilter(Protocol):
    """Chooses the groups of a batch among more complete ones; the others are dropped."""

    @property
    def name(self) -> str:
        """Word that dropped groups are counted by (as `filter:<name>`)."""
        ...

    def pool(self, groups_per_batch: int) -> int:
        """Complete groups that it needs to choose a batch from, at least that many."""
        ...

    def choose(self, values: "Sequence[np.ndarray]", most: int) -> list[int]:
        """Indices of the groups that are kept, at least one and at most `most`.

        Args:
            values: Of each complete group, by id: float64 [G], rewards of its members. Fewer than a pool when
                the prompts are exhausted.
            most: Groups of a batch.
        """
        ...


@dataclass(frozen=True, slots=True)
class ZeroSpread:
    """Drops a group whose rewards are all the same: its group-relative advantages are all zero.

    Source: dynamic sampling of DAPO, Yu et al. 2025 (arXiv 2503.14476), equation 11.

    Attributes:
        tolerance: Largest difference between two rewards that still counts as none, >= 0.

    Raises:
        SchedulerError: If the tolerance is out of its range.
    """

    name: ClassVar[str] = "zero_spread"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not (is_finite(self.tolerance) and self.tolerance >= 0):
            raise SchedulerError(f"ZeroSpread.tolerance: got {self.tolerance!r}, allowed is a number >= 0")

    def keep(self, values: "np.ndarray", truncated: "np.ndarray") -> bool:
        """Whether the rewards differ by more than the tolerance; see `GroupFilter.keep`."""
        return bool(values.max() - values.min() > self.tolerance)


@dataclass(frozen=True, slots=True)
class MeanOutside:
    """Drops a group whose mean reward lies outside the open interval from `low` to `high`.

    Prompts that are too hard (mean <= low) or too easy (mean >= high) are left out of the batch.

    Attributes:
        low: Greatest mean reward that is too low.
        high: Least mean reward that is too high, > `low`.

    Raises:
        SchedulerError: If no mean lies between them: every group would be dropped.
    """

    name: ClassVar[str] = "mean_outside"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise SchedulerError(
                f"MeanOutside: got low={self.low!r}, high={self.high!r}, allowed is low < high"
            )

    def keep(self, values: "np.ndarray", truncated: "np.ndarray") -> bool:
        """Whether low < mean of the rewards < high; see `GroupFilter.keep`."""
        return bool(self.low < values.mean() < self.high)


@dataclass(frozen=True, slots=True)
class TruncatedShare:
    """Drops a group of which more than a share ended at the length limit: their rewards say little.

    Attributes:
        most: Share that is still kept, >= 0 and < 1.

    Raises:
        SchedulerError: If the share is out of its range.
    """

    name: ClassVar[str] = "truncated_share"
    most: float

    def __post_init__(self) -> None:
        if not (is_finite(self.most) and 0 <= self.most < 1):
            raise SchedulerError(f"TruncatedShare.most: got {self.most}, allowed is >= 0 and < 1")

    def keep(self, values: "np.ndarray", truncated: "np.ndarray") -> bool:
        """Whether at most that share is truncated; see `GroupFilter.keep`."""
        return bool(truncated.mean() <= self.most)


@dataclass(frozen=True, slots=True)
class MostUncertain:
    """Keeps the share of groups whose rewards spread most (population standard deviation); a batch filter.

    Attributes:
        share: Share of the groups that is kept, > 0 to 1. A batch of B groups is chosen among B / share.

    Raises:
        SchedulerError: If the share is out of its range.

    Source: StarPO-S of RAGEN, arXiv 2504.20073, section 4.2 (it keeps 0.25).
    """

    name: ClassVar[str] = "most_uncertain"
    share: float

    def __post_init__(self) -> None:
        if not (is_finite(self.share) and 0 < self.share <= 1):
            raise SchedulerError(f"MostUncertain.share: got {self.share}, allowed is > 0 and <= 1")

    def pool(self, groups_per_batch: int) -> int:
        """The smallest pool of which the share is a batch; see `BatchFilter.pool`."""
        return math.ceil(groups_per_batch / self.share - TIE)

    def choose(self, values: "Sequence[np.ndarray]", most: int) -> list[int]:
        """The floor(share * groups) groups of the largest spread, ties to the earlier; see `BatchFilter`."""
        count = max(1, min(most, math.floor(self.share * len(values) + TIE)))
        spread = [float(rewards.std()) for rewards in values]
        falling = sorted(range(len(values)), key=spread.__getitem__, reverse=True)
        chosen: set[int] = set()
        equals: list[int] = []
        first = entered = 0
        while len(chosen) < min(count, len(values)):
            while falling[first] in chosen:
                first += 1
            least = spread[falling[first]] - TIE
            while entered < len(falling) and spread[falling[entered]] >= least:
                heapq.heappush(equals, falling[entered])
                entered += 1
            chosen.add(heapq.heappop(equals))
        return sorted(chosen)
