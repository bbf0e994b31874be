"""When half of the rollout's devices begin to train on what is complete, once a rollout.

`ElasticPlan` moves devices one by one, and is what this package's own policies use. This is the published
rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["StreamRule", "StreamTrigger", "sample_weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRule:
    """Between which shares of a rollout devices may change sides, for example `StreamRule()`.

    Attributes:
        least: Completions that have to be done, as a share of all, 0 to `most`.
        most: Share that may be done at most, `least` to 1.
        step: Share that has to be done since the look before, 0 to 1.

    Raises:
        SchedulerError: If a share is out of its range.

    Source: RollPacker, arXiv 2509.21009, section 4.4 and algorithm 1.
    """

    least: float = 0.2
    most: float = 0.5
    step: float = 0.05

    def __post_init__(self) -> None:
        numbers = all(map(is_finite, (self.least, self.most, self.step)))
        if not (numbers and 0 <= self.least <= self.most <= 1 and 0 <= self.step <= 1):
            raise SchedulerError(
                f"StreamRule: got least={self.least!r}, most={self.most!r}, step={self.step!r}, allowed is "
                "0 <= least <= most <= 1 and 0 <= step <= 1"
            )

    def holds(self, *, done: int, new: int, total: int) -> bool:
        """Whether devices may change sides now; the bounds themselves are allowed.

        Args:
            done: Completions that are done, 0 to `total`.
            new: Those of them that were not at the look before.
            total: Completions of the rollout, >= 1.

        Raises:
            SchedulerError: If the counts are impossible.
        """
        if not 0 <= new <= done <= total or total < 1:
            raise SchedulerError(
                f"StreamRule.holds: got done={done}, new={new}, total={total}, allowed is "
                "0 <= new <= done <= total, total >= 1"
            )
        return self.least <= done / total <= self.most and new / total >= self.step


class StreamTrigger:
    """Looks at a rollout's progress, and says once that devices may change sides.

    Args:
        rule: Between which shares.
    """

    def __init__(self, rule: StreamRule | None = None) -> None:
        self._rule = rule or StreamRule()
        self.begin()

    def begin(self) -> None:
        """A new rollout begins."""
        self._seen = 0
        self._tried = False

    def check(
        self,
        *,
        done: int,
        total: int,
        kv_needed: float = 0.0,
        kv_left: float = math.inf,
        splits: bool = False,
    ) -> bool:
        """Whether half of the devices are to train from now on; True at most once a rollout.

        Args:
            done: Completions that are done.
            total: Completions of the rollout.
            kv_needed: Tokens of KV that what still runs is expected to need at its peak.
            kv_left: Tokens of KV that fit on the devices that would go on generating.
            splits: Whether the halves would tear a communication group apart.
        """
        new, self._seen = done - self._seen, done
        if self._tried or not self._rule.holds(done=done, new=new, total=total):
            return False
        self._tried = True
        return kv_needed <= kv_left and not splits


def sample_weights(samples: Sequence[int]) -> list[float]:
    """What each replica's mean gradient counts for in that of all, with sum 1.

    Replicas that began to train at different times have seen different numbers of samples: the gradient of
    the batch is `sum(w_i * g_i)`, not the mean of the `g_i`.

    Args:
        samples: Samples of each replica, >= 0.

    Raises:
        SchedulerError: If a number is negative or there is no sample.

    Source: RollPacker, arXiv 2509.21009, section 4.4.
    """
    total = sum(samples)
    if total < 1 or min(samples) < 0:
        raise SchedulerError(
            f"sample_weights: got {list(samples)}, allowed are numbers >= 0 of which one is > 0"
        )
    return [count / total for count in samples]
