"""Several replicas in one virtual time. Used by the world and by the re-created peers."""

import heapq
import math
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from roll_scheduler.simulator.engine_model import EngineModel, Replica, Sequence, Span, Usage
from roll_scheduler.simulator.errors import SimulationError

__all__ = ["Fleet", "FleetUsage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUsage:
    """Sums over the replicas since the beginning; the fields are those of `Usage`."""

    slot_s: float
    busy_s: float
    stalled_s: float
    tokens: int
    prefilled: int
    recomputed: int
    preemptions: int


class Fleet:
    """Replicas 0 to R - 1 and the order of their events.

    Time is passed in and never goes back; `advance` has to be called at each `next_at`.

    Args:
        models: One a replica.
        record_spans: Whether `spans` is filled.

    Raises:
        SimulationError: If there is no replica.
    """

    def __init__(self, models: ListOf[EngineModel], *, record_spans: bool = False) -> None:
        if not models:
            raise SimulationError("replicas: got none, at least one is needed")
        self.models = tuple(models)
        self.spans: list[list[Span]] | None = [[] for _ in models] if record_spans else None
        self._usage = [Usage() for _ in models]
        self._replicas = [self._new(index, 0.0) for index in range(len(models))]
        self._events: list[tuple[float, int]] = []
        self._at = [math.inf] * len(models)
        self._touched: set[int] = set()

    def __len__(self) -> int:
        return len(self._replicas)

    def load(self, index: int) -> int:
        """Sequences that are active or wait on a replica."""
        return self._replicas[index].load

    def next_at(self) -> float:
        """When something happens next, infinity if nothing runs."""
        for index in self._touched:
            self._reschedule(index)
        self._touched.clear()
        events = self._events
        while events and events[0][0] != self._at[events[0][1]]:
            heapq.heappop(events)
        return events[0][0] if events else math.inf

    def submit(self, index: int, sequence: Sequence, now: float) -> None:
        """Sends a sequence to a replica; see `Replica.submit`."""
        self._replicas[index].submit(sequence, now)
        self._touched.add(index)

    def advance(self, now: float) -> list[tuple[int, Sequence]]:
        """Runs up to `now`, which is at most `next_at`; returns what has finished, by replica."""
        finished: list[tuple[int, Sequence]] = []
        if self.next_at() > now:
            return finished
        events, at = self._events, self._at
        while events and events[0][0] <= now:
            when, index = heapq.heappop(events)
            if when == at[index]:
                at[index] = math.inf
                self._touched.add(index)
                finished += [(index, sequence) for sequence in self._replicas[index].advance(now)]
        return finished

    def remove(self, index: int, sequence: Sequence, now: float) -> int:
        """Takes a sequence out; returns the tokens that it has generated."""
        self._touched.add(index)
        return self._replicas[index].remove(sequence, now)

    def stall(self, now: float, seconds: float, *, sync: bool = False) -> float:
        """Holds all replicas up for some seconds, when the last has ended its iteration; returns the end.

        Without any seconds nobody waits; a `sync` may still cost the KV, see `Replica.stall`.
        """
        stops = [replica.stops_at(now) for replica in self._replicas]
        until = max(stops) + seconds
        for index, replica in enumerate(self._replicas):
            replica.stall(now, until if seconds > 0 else stops[index], sync=sync)
            self._touched.add(index)
        return until if seconds > 0 else now

    def stops_at(self, index: int, now: float) -> float:
        """When a replica can be held up: the end of its current iteration."""
        self._touched.add(index)
        return self._replicas[index].stops_at(now)

    def restart(self, index: int, now: float) -> list[Sequence]:
        """A replica lost all that it had, which is returned, and is empty again."""
        out = self._replicas[index].drain(now)
        self._replicas[index] = self._new(index, now)
        self._touched.add(index)
        return out

    def usage(self, now: float) -> FleetUsage:
        """What has been done, summed over the replicas; an iteration that has begun by `now` counts whole."""
        for index, replica in enumerate(self._replicas):
            replica.settle(now)
            self._touched.add(index)
        each = self._usage
        return FleetUsage(
            slot_s=sum(usage.slot_s for usage in each),
            busy_s=sum(usage.busy_s for usage in each),
            stalled_s=sum(usage.stalled_s for usage in each),
            tokens=sum(usage.tokens for usage in each),
            prefilled=sum(usage.prefilled for usage in each),
            recomputed=sum(usage.recomputed for usage in each),
            preemptions=sum(usage.preemptions for usage in each),
        )

    def _new(self, index: int, now: float) -> Replica:
        spans = None if self.spans is None else self.spans[index]
        return Replica(self.models[index], index=index, now=now, usage=self._usage[index], spans=spans)

    def _reschedule(self, index: int) -> None:
        at = self._replicas[index].next_at()
        if at != self._at[index]:
            self._at[index] = at
            if at != math.inf:
                heapq.heappush(self._events, (at, index))
