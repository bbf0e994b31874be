"""How many devices an engine takes (tensor parallelism), from how often it ran out of KV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll_scheduler.errors import SchedulerError

__all__ = ["TpPlanner", "TpRule", "planned_tp"]

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TpRule:
    """When tensor parallelism is doubled or halved, for example `TpRule(most=8)`.

    Attributes:
        most: Devices of one server, >= 1; a tensor-parallel group stays within it.
        rise: Preemptions as a multiple of those of the step before, above which it is doubled, >= 1.
        zero_steps: Steps in a row without a preemption, after which it is halved, >= 1.

    Raises:
        SchedulerError: If a number is out of its range.

    Source: RollPacker, arXiv 2509.21009, section 4.2.
    """

    most: int
    rise: float = 1.05
    zero_steps: int = 4

    def __post_init__(self) -> None:
        for name in ("most", "rise", "zero_steps"):
            value = getattr(self, name)
            kind = int | float if name == "rise" else int
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= 1:
                what = "a number" if name == "rise" else "an integer"
                raise SchedulerError(f"TpRule.{name}: got {value!r}, allowed is {what} >= 1")


class TpPlanner:
    """The state of the rule: one `observe` a step.

    A rise is looked for only if the step before had preemptions. Rounds of different kinds are not compared:
    short rounds, with more sequences at a time, preempt more than long ones.

    Differs: the paper does not tell which steps it compares.

    Args:
        rule: When to change.
        tp: Devices of an engine now, 1 to `rule.most`.

    Attributes:
        tp: Devices of an engine from now on.

    Raises:
        SchedulerError: If `tp` is out of its range.
    """

    def __init__(self, rule: TpRule, *, tp: int = 1) -> None:
        if not isinstance(tp, int) or not 1 <= tp <= rule.most:
            raise SchedulerError(f"TpPlanner.tp: got {tp!r}, allowed is 1 to {rule.most} (TpRule.most)")
        self._rule = rule
        self.tp = tp
        self._before: dict[str, int] = {}
        self._zeros = 0

    def observe(self, preemptions: int, kind: str = "") -> int:
        """A step ended; returns the devices of an engine from the next one on.

        Args:
            preemptions: Sequences that were preempted in the step, >= 0.
            kind: Kind of the round, for example `"short"` or `"long"`.

        Raises:
            SchedulerError: If the count is negative.
        """
        if preemptions < 0:
            raise SchedulerError(f"TpPlanner.observe: got {preemptions} preemptions, allowed is >= 0")
        before = self._before.get(kind, 0)
        self._before[kind] = preemptions
        if preemptions:
            self._zeros = 0
            if before and preemptions > self._rule.rise * before:
                self.tp = min(2 * self.tp, self._rule.most)
            return self.tp
        self._zeros += 1
        if self._zeros == self._rule.zero_steps:
            self._zeros = 0
            self.tp = max(1, self.tp // 2)
        return self.tp

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON."""
        return {"format": FORMAT, "tp": self.tp, "before": dict(self._before), "zeros": self._zeros}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`.

        Raises:
            SchedulerError: If it is not one, or its `tp` does not fit the rule.
        """
        try:
            tp, zeros = int(state["tp"]), int(state["zeros"])
            before = {str(kind): int(count) for kind, count in state["before"].items()}
            known = state["format"] == FORMAT
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchedulerError(f"TpPlanner.restore: got what is no state of it: {error!r}") from error
        if not known or not 1 <= tp <= self._rule.most:
            raise SchedulerError(
                f"TpPlanner.restore: got format {state['format']!r} and tp {tp}, allowed are {FORMAT} "
                f"and 1 to {self._rule.most}"
            )
        self.tp, self._zeros, self._before = tp, zeros, before


def planned_tp(preemptions: Sequence[int], rule: TpRule, *, tp: int = 1) -> list[int]:
    """Devices of an engine after each step, as long as `preemptions`.

    Args:
        preemptions: Of each step, >= 0.
        rule: When to change.
        tp: Devices before the first step.
    """
    planner = TpPlanner(rule, tp=tp)
    return [planner.observe(count) for count in preemptions]
