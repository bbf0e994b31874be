"""What a core has learned from a run, as it goes into snapshots and comes back. Used by the core."""

from collections.abc import Mapping
from typing import Any

from roll_scheduler.errors import SchedulerError
from roll_scheduler.queueing.dispatch import DispatchQueue
from roll_scheduler.rounds.provision import Provision
from roll_scheduler.snapshot import StatefulPart

__all__ = ["ESTIMATOR", "OWN_PARTS", "Learned"]

ESTIMATOR = "lengths"
"""Name of the length predictor among the parts of a snapshot."""

REST = "scheduler"
"""Name of all the rest: over-provisioning that adapts, health of replicas, speed."""

OWN_PARTS = (ESTIMATOR, REST)
"""Names of parts that are the core's own."""


class Learned:
    """Lengths, over-provisioning, health of replicas and speed.

    Args:
        queue: Its estimator, health and speed.
        provision: What adapts.
    """

    def __init__(self, queue: DispatchQueue, provision: Provision) -> None:
        self._queue = queue
        estimator: object = queue.estimator
        self._estimator = estimator if isinstance(estimator, StatefulPart) else None
        self._rest: dict[str, StatefulPart] = {"over_provision": provision, **queue.learned()}

    def parts(self) -> dict[str, Mapping[str, Any]]:
        """What goes into a snapshot, by name; see `SchedulerSnapshot.parts`."""
        rest = {name: state for name, part in self._rest.items() if (state := part.state())}
        parts = {} if self._estimator is None else {ESTIMATOR: self._estimator.state()}
        return parts | {REST: rest} if rest else parts

    def restore(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Goes on from a snapshot's parts; what the policy has no use for now is left alone.

        Raises:
            SchedulerError: If one of them is no state.
        """
        if self._estimator is not None and ESTIMATOR in parts:
            self._estimator.restore(parts[ESTIMATOR])
        for name, state in parts.get(REST, {}).items():
            part = self._rest.get(name)
            if part is None:
                continue
            if not isinstance(state, Mapping):
                raise SchedulerError(f"resume: part {REST}.{name} is {state!r}, allowed is what `state` gave")
            part.restore(state)
        self._queue.weigh_all()
