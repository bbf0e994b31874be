"""What is done about completions that would end sooner on another replica. Part of the policy."""

import math
from dataclasses import dataclass
from typing import Literal

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["Stragglers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Slots that are free while nothing waits are given to completions that end late, for example

        Stragglers(action="duplicate", gain=0.3)

    When a completion will end is predicted from its length and from how fast its replica has been. Where all
    replicas are alike nothing is done: a copy that begins anew would not overtake.

    Attributes:
        action: `"duplicate"` generates the completion on another replica too, from the same seed; who ends
            first counts, the other is aborted. An engine whose sampling follows the seed gives the same
            completion; others give another one, of which the shorter is a little more likely to be kept.
            `"move"`, with partial rollouts, stops it and goes on elsewhere with the tokens that it has.
        gain: Part of the seconds that it is expected to take yet which has to be saved, > 0 and < 1.
        every_s: Seconds between two looks, > 0.
        most: Duplicates at a time, >= 1.

    Raises:
        SchedulerError: If a value is out of its range.
    """

    action: Literal["duplicate", "move"] = "duplicate"
    gain: float = 0.3
    every_s: float = 1.0
    most: int = 64

    def __post_init__(self) -> None:
        if self.action not in ("duplicate", "move"):
            raise _refused("action", self.action, "'duplicate' or 'move'")
        for name, value, top in (("gain", self.gain, 1.0), ("every_s", self.every_s, math.inf)):
            if not (is_finite(value) and 0 < value < top):
                raise _refused(name, value, f"a number > 0 and < {top:g}")
        if not isinstance(self.most, int) or isinstance(self.most, bool) or self.most < 1:
            raise _refused("most", self.most, "an integer >= 1")


def _refused(name: str, got: object, allowed: str) -> SchedulerError:
    return SchedulerError(f"Stragglers.{name}: got {got!r}, allowed is {allowed}")
