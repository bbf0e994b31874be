"""What each replica is worth, from how fast it is and how often it fails. Used by the dispatch queue."""

import math
from collections.abc import Mapping
from typing import Any

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["ReplicaHealth"]


SLOWNESS = 3
"""Power of a replica's relative speed that weighs it: a long completion there ends the batch late."""


class _Seen:
    __slots__ = ("count", "failures", "log_rate", "told")

    def __init__(self) -> None:
        self.count = 0
        self.failures = 0.0
        self.log_rate = 0.0
        self.told = 1.0


class ReplicaHealth:
    """Weights for `Router.report`: the share of its slots that a replica should have busy; O(1) an event.

    A replica that gives tokens more slowly than `tolerance` times the geometric mean of all is weighted by
    the cube of that ratio, and one that fails by the square of its share of successes, over the last 20 or so
    requests each. A weight is never below `floor`: what gets no request could not recover.

    Args:
        tolerance: Speed, as a share of the mean, that still counts as healthy, 0 to 1.
        floor: Least weight, > 0 to 1.

    Attributes:
        longest: Tokens of the longest request that ended.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    RATE = 0.05
    LEAST_SEEN = 4
    LEAST_CHANGE = 0.05

    def __init__(self, *, tolerance: float = 0.7, floor: float = 0.05) -> None:
        if not (is_finite(tolerance) and 0 <= tolerance <= 1):
            raise SchedulerError(f"ReplicaHealth.tolerance: got {tolerance!r}, allowed is 0 to 1")
        if not (is_finite(floor) and 0 < floor <= 1):
            raise SchedulerError(f"ReplicaHealth.floor: got {floor!r}, allowed is > 0 to 1")
        self._tolerance = tolerance
        self._floor = floor
        self._seen: dict[str, _Seen] = {}
        self._sum = 0.0
        self._known = 0
        self.longest = 0.0

    def ended(self, name: str, *, tokens: float, seconds: float) -> None:
        """A request ended on a replica with so many tokens after so many seconds."""
        seen = self._of(name)
        seen.failures *= 1 - self.RATE
        if tokens <= 0 or seconds <= 0:
            return
        self.longest = max(self.longest, tokens)
        log_rate = math.log(tokens / seconds)
        if seen.count == 0:
            self._known += 1
            change = log_rate
        else:
            change = (log_rate - seen.log_rate) * max(self.RATE, 1 / (seen.count + 1))
        seen.count += 1
        seen.log_rate += change
        self._sum += change

    def failed(self, name: str) -> None:
        """A request failed on a replica."""
        seen = self._of(name)
        seen.failures += (1 - seen.failures) * self.RATE

    def reset(self, name: str) -> None:
        """A replica's weight was set to 1 by somebody else; what is known of it stays."""
        self._of(name).told = 1.0

    def forget(self, name: str) -> None:
        """A replica left."""
        seen = self._seen.pop(name, None)
        if seen is not None and seen.count:
            self._known -= 1
            self._sum -= seen.log_rate

    def weight(self, name: str) -> float | None:
        """What a replica is worth, `floor` to 1; None if that is about what was told before."""
        seen = self._of(name)
        worth = 1.0
        if seen.count >= self.LEAST_SEEN and self._known > 1:
            ratio = math.exp(min(0.0, seen.log_rate - self._sum / self._known))
            worth = 1.0 if ratio >= self._tolerance else ratio**SLOWNESS
        worth = max(self._floor, worth * (1 - seen.failures) ** 2)
        if abs(worth - seen.told) < self.LEAST_CHANGE and (worth < 1 or seen.told == 1):
            return None
        seen.told = worth
        return worth

    def rate(self, name: str) -> float | None:
        """Tokens a second that a request gets on a replica, None before four have ended there."""
        seen = self._seen.get(name)
        return None if seen is None or seen.count < self.LEAST_SEEN else math.exp(seen.log_rate)

    def state(self) -> dict[str, Any]:
        """What was seen, as JSON; see `StatefulPart`."""
        seen = {name: [each.count, each.failures, each.log_rate] for name, each in self._seen.items()}
        return {"longest": self.longest, "replicas": seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; weights have to be asked for anew.

        Raises:
            SchedulerError: If it is not one.
        """
        restored: dict[str, _Seen] = {}
        try:
            longest = float(state["longest"])
            for name, (count, failures, log_rate) in state["replicas"].items():
                seen = restored[str(name)] = _Seen()
                seen.count, seen.failures, seen.log_rate = int(count), float(failures), float(log_rate)
                if seen.count < 0 or not 0 <= seen.failures <= 1 or not math.isfinite(seen.log_rate):
                    raise ValueError(f"replica {name!r}: {[count, failures, log_rate]}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchedulerError(f"ReplicaHealth.restore: got what is no state of it: {error!r}") from error
        self.longest, self._seen = longest, restored
        counted = [seen.log_rate for seen in restored.values() if seen.count]
        self._known, self._sum = len(counted), math.fsum(counted)

    def _of(self, name: str) -> _Seen:
        return self._seen.setdefault(name, _Seen())
