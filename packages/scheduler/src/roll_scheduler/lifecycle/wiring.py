"""The collaborators of one core, made and introduced to each other. Used by the core's constructor."""

from collections.abc import Callable, Mapping

from roll_scheduler.health.idleness import Idleness
from roll_scheduler.health.quarantine import Quarantine
from roll_scheduler.health.straggler_watch import StragglerWatch
from roll_scheduler.lifecycle.attempts import Attempts
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.flight import FlightGroup
from roll_scheduler.lifecycle.groups import GroupBook
from roll_scheduler.lifecycle.learned import Learned
from roll_scheduler.lifecycle.ledger import Ledger
from roll_scheduler.lifecycle.overtaking import Overtaking
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.dispatch import DispatchQueue
from roll_scheduler.queueing.environment_limits import EnvironmentLimits
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.rounds.rounds import Rounds
from roll_scheduler.routers.catalogue import ROUTERS
from roll_scheduler.routers.router import Router
from roll_scheduler.snapshot import SchedulerSnapshot

__all__ = ["Wiring"]


class Wiring:
    """What a `SchedulerCore` is made of; each argument is one of the core's.

    Args:
        policy: Sizes and bounds.
        replicas: Slots by name.
        run_seed: Seed that ticket seeds derive from.
        start: Where to go on.
        router: Instead of the policy's.
        estimator: Predicts lengths.
        tagged: Whether groups have tags.
        opened: Called with each group that begins.

    Raises:
        SchedulerError: If `replicas` is empty or one has no slot, tags are missing while the policy limits
            environments, or the snapshot's parts are no states.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        replicas: Mapping[str, int],
        run_seed: int,
        start: SchedulerSnapshot,
        router: Router | None,
        estimator: LengthEstimator | None,
        tagged: bool,
        opened: Callable[[FlightGroup], None],
    ) -> None:
        chosen = ROUTERS[policy.router](run_seed, policy.kv_tokens) if router is None else router
        self.replicas = ReplicaSlots(replicas, chosen)
        self.ledger = Ledger(ends=start.ends, totals=start.totals)
        self.queue = DispatchQueue(self.replicas, policy, estimator=estimator, informs=router is not None)
        self.quarantine = Quarantine(policy.quarantine_after, dict(start.suspects))
        for name, slots in replicas.items():
            self.quarantine.up(name, slots)
        limits = EnvironmentLimits(policy.concurrency, tagged=tagged)
        self.departures = Departures(self.replicas, self.queue, quarantine=self.quarantine, limits=limits)
        self.book = GroupBook(
            policy,
            departures=self.departures,
            ledger=self.ledger,
            run_seed=run_seed,
            version=start.version,
            opened=opened,
        )
        self.attempts = Attempts(
            policy,
            book=self.book,
            departures=self.departures,
            queue=self.queue,
            quarantine=self.quarantine,
            ledger=self.ledger,
            anchor_s=start.grading_anchor_s,
        )
        self.rounds = Rounds(
            policy,
            book=self.book,
            departures=self.departures,
            attempts=self.attempts,
            ledger=self.ledger,
            resume=start,
        )
        self.learned = Learned(self.queue, self.book.provision)
        self.learned.restore(start.parts)
        self.idleness = Idleness(policy.wait_deadline_s)
        self.overtaking = self._overtaking(policy)

    def _overtaking(self, policy: SchedulerPolicy) -> Overtaking | None:
        health, lengths = self.queue.health, self.queue.estimator
        if policy.stragglers is None or health is None or lengths is None:
            return None
        watch = StragglerWatch(
            policy.stragglers,
            replicas=self.replicas,
            departures=self.departures,
            health=health,
            estimator=lengths,
        )
        return Overtaking(
            watch,
            replicas=self.replicas,
            departures=self.departures,
            book=self.book,
            attempts=self.attempts,
        )
