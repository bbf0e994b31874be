"""Which running tickets would end sooner elsewhere. Asked when slots are free and nothing waits."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from roll_scheduler.health.replica_health import ReplicaHealth
from roll_scheduler.health.stragglers import Stragglers
from roll_scheduler.lifecycle.departures import Departures
from roll_scheduler.lifecycle.flight import Flight
from roll_scheduler.queueing.longest_first import LengthEstimator, predicted
from roll_scheduler.queueing.placement import ReplicaSlots

__all__ = ["Straggler", "StragglerWatch"]

STALLED = 2.0
"""Times the longest completion so far, beyond which one is taken to make no progress."""


class Straggler(NamedTuple):
    """A ticket that would end sooner elsewhere.

    Attributes:
        flight: The ticket.
        avoid: Replicas on which it would not.
    """

    flight: Flight
    avoid: frozenset[str]


class StragglerWatch:
    """Compares when running tickets end with when they would end on the replicas that have a slot free.

    A ticket that has run for twice as long as the longest completion so far would have taken is not making
    progress: it is expected to take as long again. Where the caller reports tokens, its own speed counts.

    Args:
        rule: What is done, and for how much.
        replicas: Where slots are free.
        departures: What runs where.
        health: How fast replicas have been.
        estimator: Predicts lengths.

    Attributes:
        rule: What is done.
        next_at: When to look next.
    """

    def __init__(
        self,
        rule: Stragglers,
        *,
        replicas: ReplicaSlots,
        departures: Departures,
        health: ReplicaHealth,
        estimator: LengthEstimator,
    ) -> None:
        self.rule = rule
        self.next_at = -math.inf
        self._replicas = replicas
        self._departures = departures
        self._health = health
        self._estimator = estimator

    def look(self, now: float) -> list[Straggler]:
        """Those for which it pays, the one first that gains most."""
        self.next_at = now + self.rule.every_s
        rates = self._rates()
        free = [name for name in rates if self._replicas.has_room(name)]
        if not free:
            return []
        best = max(rates[name] for name in free)
        full = rates.keys() - free
        found: list[tuple[float, int, Straggler]] = []
        running = 0
        for name, rate in rates.items():
            for flight in self._departures.on(name):
                running += flight.copy
                if not _may_be_outrun(flight):
                    continue
                stay_s, tokens = self._left(flight, rate, now)
                if tokens / best < (1 - self.rule.gain) * stay_s:
                    needed = tokens / ((1 - self.rule.gain) * stay_s)
                    avoid = {name, *full, *flight.avoid, *_slower(rates, free, needed)}
                    straggler = Straggler(flight, frozenset(avoid))
                    found.append((stay_s - tokens / best, -flight.ticket.id, straggler))
        found.sort(key=lambda each: each[:2], reverse=True)
        return [straggler for _, _, straggler in found[: max(0, self.rule.most - running)]]

    def _rates(self) -> dict[str, float]:
        """Tokens a second of a request on each live replica; empty as long as nothing is known."""
        names = self._replicas.names()
        known = {name: rate for name in names if (rate := self._health.rate(name)) is not None}
        if not known:
            return {}
        mean = math.exp(sum(map(math.log, known.values())) / len(known))
        return {name: known.get(name, mean) for name in names}

    def _left(self, flight: Flight, rate: float, now: float) -> tuple[float, float]:
        """Seconds that a ticket takes yet where it is, and tokens that it has to generate elsewhere."""
        seconds = now - flight.since
        has = flight.kept + seconds * rate
        if flight.reported_at > flight.since:
            took = flight.reported_at - flight.since
            rate = (flight.reported - flight.kept) / took
            has = flight.reported + rate * (now - flight.reported_at)
        begins_with = has if self.rule.action == "move" else float(flight.kept)
        longest = STALLED * self._health.longest
        if rate <= 0 or (longest and has - flight.kept > longest):
            if self.rule.action == "move":
                begins_with = float(max(flight.kept, flight.reported))
            total = predicted(self._estimator, flight.group, so_far=begins_with)
            return seconds, max(total - begins_with, 1.0)
        total = predicted(self._estimator, flight.group, so_far=has)
        return (total - has) / rate, max(total - begins_with, 1.0)


def _may_be_outrun(flight: Flight) -> bool:
    """Whether nothing else is being done about a ticket: suspects and limited environments are left alone."""
    busy = flight.twin is not None or flight.stopping or flight.admitted
    return not (busy or flight.losses or flight.group.losses)


def _slower(rates: Mapping[str, float], names: Iterable[str], least: float) -> list[str]:
    return [name for name in names if rates[name] < least]
