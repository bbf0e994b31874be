"""How many more groups and members than a batch needs are sent out now. Used by `Rounds`.

What adapts needs numpy, and is imported only where a policy adapts.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roll_scheduler.lifecycle.flight import FlightGroup
from roll_scheduler.policy import SchedulerPolicy

if TYPE_CHECKING:
    from roll_scheduler.rounds.adaptive_over_provision import AdaptiveOverProvision, RoundModel

__all__ = ["Provision"]

UNITS_S = 1000
"""Lengths are seconds here, in which a logarithm of less than one would not count."""


class Provision:
    """What the policy says, or, if that adapts, what pays by the lengths of the groups that ended.

    Args:
        policy: Its `over_provision`.

    Attributes:
        groups: Further groups of a short round.
        members: Further completions of a group.
    """

    def __init__(self, policy: SchedulerPolicy) -> None:
        extra = policy.over_provision
        self._policy = policy
        self._adaptive: AdaptiveOverProvision | None = None
        self._before: Mapping[str, Any] | None = None
        self._adapts = extra is not None and extra.adaptive
        self.groups = 0 if self._adapts else policy.extra_groups
        self.members = 0 if self._adapts else policy.extra_members

    def begin(self, slots: int) -> None:
        """A short round begins, with so many slots on all replicas."""
        if not self._adapts or not slots:
            return
        if self._adaptive is None:
            from roll_scheduler.rounds.adaptive_over_provision import AdaptiveOverProvision

            self._adaptive = AdaptiveOverProvision(self._model(slots), limit=self._policy.over_provision)
            if self._before is not None:
                self._adaptive.restore(self._before)
        self._adaptive.model = self._model(slots)
        choice = self._adaptive.choose()
        self.groups = 0 if choice is None else choice.groups
        self.members = 0 if choice is None else choice.members

    def state(self) -> dict[str, Any]:
        """What is known of lengths and what was chosen, as JSON; empty before anything is."""
        return dict(self._before or {}) if self._adaptive is None else self._adaptive.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`, with the next round.

        Raises:
            SchedulerError: If it is not one.
        """
        if self._adapts and state:
            from roll_scheduler.rounds.adaptive_over_provision import AdaptiveOverProvision

            AdaptiveOverProvision(self._model(1), limit=self._policy.over_provision).restore(state)
            self._before = state

    def observe(self, group: FlightGroup) -> None:
        """A group was delivered, dropped or deferred."""
        if self._adaptive is None:
            return
        ended = [flight.took * UNITS_S for flight in group.flights if flight.took and not flight.aborted_s]
        aborted = [flight.aborted_s * UNITS_S for flight in group.flights if flight.aborted_s]
        self._adaptive.observe(ended, aborted)

    def _model(self, slots: int) -> "RoundModel":
        from roll_scheduler.rounds.adaptive_over_provision import RoundModel

        policy = self._policy
        return RoundModel(
            groups=policy.groups_per_batch,
            group_size=policy.group_size,
            slots=slots,
            base_s=1 / UNITS_S,
            defer=policy.defers,
        )
