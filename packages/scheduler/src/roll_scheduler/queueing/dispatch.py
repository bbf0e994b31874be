"""Waiting tickets and the slots they get. Used by the core."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from roll_scheduler.health.replica_health import ReplicaHealth
from roll_scheduler.lengths.predictor import LengthPredictor
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.longest_first import LengthEstimator, LongestFirst, predicted
from roll_scheduler.queueing.placement import ReplicaSlots
from roll_scheduler.queueing.prompt_homes import PromptHomes
from roll_scheduler.queueing.waiting import AffineOrder, FifoOrder, WaitingOrder, first_waiting
from roll_scheduler.routers.router import ANY, Request
from roll_scheduler.snapshot import StatefulPart
from roll_scheduler.ticket import TicketState

__all__ = ["DispatchQueue"]

RUNNING = TicketState.RUNNING


class DispatchQueue:
    """Waiting tickets: retries first, then in the policy's order.

    A retry waits for a replica that it has not failed on, and lets others pass meanwhile. Tickets that ended
    while they waited are skipped.

    Args:
        replicas: Where slots are taken.
        policy: Its `order`, `router`, `kv_tokens` and `weigh_health`.
        estimator: Predicts lengths; None makes one where the policy needs it.
        informs: Whether the router, which is not one of the policy's, is told what is known of a ticket.

    Attributes:
        estimator: The one that is used, None if none is needed.
        health: How fast replicas are and how often they fail, None if nobody wants to know.
    """

    def __init__(
        self,
        replicas: ReplicaSlots,
        policy: SchedulerPolicy,
        *,
        estimator: LengthEstimator | None = None,
        informs: bool = False,
    ) -> None:
        self._replicas = replicas
        self._by_length = policy.order == "longest_first"
        self._plans = policy.kv_tokens is not None or policy.router == "least_tokens"
        self._plain = not (self._plans or informs or policy.router.endswith("_affinity"))
        watches = policy.stragglers is not None
        if estimator is None and (self._by_length or self._plans or watches):
            estimator = LengthPredictor()
        self.estimator = estimator
        self._plans |= informs and estimator is not None
        self.health = ReplicaHealth() if policy.weigh_health or watches else None
        self._weighs = policy.weigh_health
        homes = policy.router == "prefix_affinity"
        self._longest: LongestFirst | None = None
        self._order: WaitingOrder = AffineOrder(replicas) if homes else FifoOrder()
        if self._by_length and estimator is not None:
            self._longest = self._order = LongestFirst(
                estimator, patience=_patience(policy), homes=PromptHomes(replicas) if homes else None
            )
        self._retrying: dict[frozenset[str], deque[Flight]] = {}

    def extend(self, flights: Sequence[Flight]) -> None:
        """Queues new tickets of one group."""
        self._order.extend(flights)

    def take_back(self, flights: Sequence[Flight]) -> None:
        """Queues tickets whose replica was lost, in this order, before all that wait for their first slot."""
        self._order.put_back([flight for flight in flights if not flight.avoid])
        for flight in flights:
            if flight.avoid:
                self.retry(flight)

    def retry(self, flight: Flight) -> None:
        """Queues a ticket that failed; its `avoid` names the replicas it failed on."""
        self._retrying.setdefault(flight.avoid, deque()).append(flight)

    def pop(self, now: float) -> tuple[Flight, str] | None:
        """The next ticket and the replica of which a slot was taken for it, None if nothing can start."""
        if self._replicas.full:
            return None
        if self._retrying and (placed := self._retried()) is not None:
            return placed
        flight = self._order.head(now)
        if flight is None:
            return None
        request = ANY if self._plain else self._request(flight)
        replica = self._replicas.take(flight.avoid, request)
        if replica is None:
            return None
        flight.request = request
        self._order.taken(flight, replica)
        return flight, replica

    def finished(self, flight: Flight, *, tokens: int, truncated: bool, now: float) -> None:
        """A generation ended; its ticket has its slot still."""
        if self.estimator is not None:
            group = flight.group
            self.estimator.observe(group.key, group.tag, tokens, truncated)
            if self._longest is not None:
                self._longest.finished(flight, tokens, now)
        if self.health is not None and flight.replica is not None:
            self.health.ended(flight.replica, tokens=tokens - flight.kept, seconds=now - flight.since)
            self._weigh(flight.replica)

    def failed(self, flight: Flight) -> None:
        """A generation failed; its ticket has its slot still."""
        if self.health is not None and flight.replica is not None:
            self.health.failed(flight.replica)
            self._weigh(flight.replica)

    def gauges(self, flights: Iterable[Flight], now: float) -> dict[str, float]:
        """Replicas, and what is predicted of the tickets that run; see `roll_scheduler.reports.metrics`."""
        values = {"replicas": float(len(self._replicas)), "draining": float(len(self._replicas.draining))}
        if self._longest is not None:
            left = [self._longest.left(flight, now) for flight in flights if flight.state is RUNNING]
            values["predicted_tokens"] = sum(tokens for tokens, _ in left)
            values["predicted_tail_s"] = max((seconds for _, seconds in left), default=0.0)
        return values

    def replica_drains(self, name: str) -> None:
        """A replica drains, or does so no more: what its weight was does not hold."""
        if self.health is not None:
            self.health.reset(name)

    def replica_down(self, name: str) -> None:
        """A replica left; when one of that name comes up, nothing is known of it."""
        if self.health is not None:
            self.health.forget(name)

    def learned(self) -> dict[str, StatefulPart]:
        """What was learned of replicas and of speeds, by name, for a snapshot."""
        parts: dict[str, StatefulPart | None] = {"health": self.health, "speed": self._longest}
        return {name: part for name, part in parts.items() if part is not None}

    def weigh_all(self) -> None:
        """Tells the router what the live replicas are worth, after a resume."""
        for name in self._replicas.names():
            self._weigh(name)

    def _retried(self) -> tuple[Flight, str] | None:
        """The first of those that failed on the same replicas, as the others can go nowhere else either."""
        for avoid, flights in tuple(self._retrying.items()):
            flight = first_waiting(flights)
            if flight is None:
                del self._retrying[avoid]
                continue
            request = ANY if self._plain else self._request(flight)
            if (replica := self._replicas.take(avoid, request)) is not None:
                flight.request = request
                flights.popleft()
                return flight, replica
        return None

    def _request(self, flight: Flight) -> Request:
        group = flight.group
        session = group.traits.session
        if not self._plans:
            return Request(prefix=group.id, session=session)
        length = self._expected(group, flight.kept)
        return Request(length - flight.kept, length + group.traits.prompt_tokens, group.id, session)

    def _expected(self, group: FlightGroup, so_far: int) -> float:
        if self._longest is not None and not so_far:
            return self._longest.expected(group)
        if self.estimator is None:  # the router was handed over; it counts requests
            return so_far + 1.0
        return predicted(self.estimator, group, so_far=so_far)

    def _weigh(self, name: str) -> None:
        if self._weighs and name in self._replicas and self.health is not None:
            weight = self.health.weight(name)
            if weight is not None:
                self._replicas.weigh(name, weight)


def _patience(policy: SchedulerPolicy) -> int:
    """Groups that may be outstanding: within a synchronous round the order is by length alone."""
    ahead = math.ceil((policy.max_staleness + 1) * policy.groups_per_batch)
    return max(ahead, policy.pool) + policy.extra_groups
