"""Replicas take requests in turn."""

import heapq
import itertools
from collections.abc import Collection

from roll_scheduler.routers.loads import Loads, ReplicaLoad
from roll_scheduler.routers.router import Request

__all__ = ["RoundRobin"]


class RoundRobin:
    """The replica that has waited longest for a request takes the next, whatever its load; O(log replicas).

    A replica that is full when its turn comes keeps its place in line. Weights other than 0 make no
    difference.

    Args:
        kv_tokens: KV that fits on a replica; see `Loads`.
    """

    def __init__(self, *, kv_tokens: int | None = None) -> None:
        self._loads = Loads(kv_tokens=kv_tokens)
        self._turns = itertools.count()
        self._line: list[tuple[int, str]] = []
        self._turn: dict[str, int] = {}
        self._in_line: set[str] = set()

    def up(self, name: str, slots: int) -> None:
        """A replica joined; see `Router`."""
        load = self._loads.up(name, slots)
        self._turn[name] = next(self._turns)
        self._queue(load)

    def down(self, name: str) -> None:
        """A replica left; see `Router`."""
        self._loads.down(name)
        del self._turn[name]
        self._in_line.discard(name)
        self._line = [entry for entry in self._line if entry[1] != name]
        heapq.heapify(self._line)

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot; see `Router`."""
        passed, found = [], None
        while self._line and found is None:
            entry = heapq.heappop(self._line)
            load = self._loads.replicas[entry[1]]
            if load.running >= load.slots or load.weight == 0:
                self._in_line.discard(entry[1])
            elif entry[1] in avoid or not self._loads.may_take(load, request):
                passed.append(entry)
            else:
                found = load
        for entry in passed:
            heapq.heappush(self._line, entry)
        if found is None:
            return None
        self._in_line.discard(found.name)
        self._turn[found.name] = next(self._turns)
        try:
            self._loads.add(found, request)
        finally:
            self._queue(found)
        return found.name

    def release(self, name: str, request: Request) -> None:
        """Gives a slot back; see `Router`."""
        self._queue(self._loads.remove(name, request))

    def report(self, name: str, weight: float) -> None:
        """Sets a replica's weight; see `Router`."""
        self._loads.weigh(name, weight)
        self._queue(self._loads.replicas[name])

    def _queue(self, load: ReplicaLoad) -> None:
        if load.name not in self._in_line and load.running < load.slots and load.weight > 0:
            heapq.heappush(self._line, (self._turn[load.name], load.name))
            self._in_line.add(load.name)
