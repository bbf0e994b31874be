"""Group filters: which complete groups carry a signal. Consumed by the core when a group completes."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

__all__ = ["GroupFilter", "MeanOutside", "ZeroSpread"]


@runtime_checkable
class GroupFilter(Protocol):
    """Decides whether a complete group is kept; a group that is not kept is replaced by the next prompt.

    `roll_scheduler.conformance.check_filter` tests an implementation.
    """

    @property
    def name(self) -> str:
        """Word that dropped groups are counted by (as `filter:<name>`)."""
        ...

    def keep(self, values: np.ndarray, truncated: np.ndarray) -> bool:
        """Whether the group is kept.

        Args:
            values: float64 [G], rewards of the members that have one, in member order.
            truncated: bool [G], whether the member ended at the length limit.
        """
        ...


@dataclass(frozen=True, slots=True)
class ZeroSpread:
    """Drops a group whose rewards are all the same: its group-relative advantages are all zero.

    Source: dynamic sampling of DAPO, Yu et al. 2025 (arXiv 2503.14476), equation 11.

    Attributes:
        tolerance: Largest difference between two rewards that still counts as none, >= 0.
    """

    name: ClassVar[str] = "zero_spread"
    tolerance: float = 1e-6

    def keep(self, values: np.ndarray, truncated: np.ndarray) -> bool:
        """Whether the rewards differ by more than the tolerance; see `GroupFilter.keep`."""
        return bool(values.max() - values.min() > self.tolerance)


@dataclass(frozen=True, slots=True)
class MeanOutside:
    """Drops a group whose mean reward lies outside the open interval from `low` to `high`.

    Prompts that are too hard (mean <= low) or too easy (mean >= high) are left out of the batch.
    """

    name: ClassVar[str] = "mean_outside"
    low: float
    high: float

    def keep(self, values: np.ndarray, truncated: np.ndarray) -> bool:
        """Whether low < mean of the rewards < high; see `GroupFilter.keep`."""
        return bool(self.low < values.mean() < self.high)
