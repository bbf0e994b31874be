"""What runs on each replica, and a heap of those with room. Kept by every router of this package."""

import heapq
import itertools
import math
from collections.abc import Collection

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.routers.router import ANY, Request

__all__ = ["Loads", "ReplicaLoad"]

MOST_REFUSALS = 32
"""Replicas without enough KV that are looked at for one request, so that a full fleet costs no scan."""


class ReplicaLoad:
    """One replica.

    Attributes:
        name: Its name.
        slots: Requests at a time.
        rank: Order in which replicas came up.
        running: Requests that have a slot.
        tokens: Sum of their expected tokens.
        kv: Sum of their expected KV.
        weight: What it is worth, 1 if healthy, 0 if it gets nothing new.
        entry: What stands for it in the heap of `Loads`; any other that is there of it is void.
    """

    __slots__ = ("entry", "kv", "name", "rank", "running", "slots", "tokens", "weight")

    def __init__(self, name: str, slots: int, rank: int) -> None:
        self.name = name
        self.slots = slots
        self.rank = rank
        self.running = 0
        self.tokens = 0.0
        self.kv = 0.0
        self.weight = 1.0
        self.entry: tuple[float, int, str] | None = None


class Loads:
    """The replicas by name, and the least loaded of those with room.

    Args:
        by_tokens: Whether load is expected tokens a slot, or busy slots as a share of all.
        kv_tokens: KV that fits on a replica; a request that would exceed it is not placed beside others.
            None is unlimited.

    Raises:
        SchedulerError: If less KV fits than that of a token.
    """

    def __init__(self, *, by_tokens: bool = False, kv_tokens: int | None = None) -> None:
        if kv_tokens is not None and not (is_finite(kv_tokens) and kv_tokens >= 1):
            raise SchedulerError(f"kv_tokens: got {kv_tokens!r}, allowed is >= 1 or None")
        self.replicas: dict[str, ReplicaLoad] = {}
        self.running = 0
        self.slots = 0
        self._by_tokens = by_tokens
        self._kv_tokens = math.inf if kv_tokens is None else kv_tokens
        self._ranks = itertools.count()
        self._heap: list[tuple[float, int, str]] = []

    def up(self, name: str, slots: int) -> ReplicaLoad:
        """Adds a replica.

        Raises:
            SchedulerError: If it is there already or has no slot.
        """
        if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
            raise SchedulerError(f"replica {name!r}: got {slots!r} slots, allowed is an integer >= 1")
        if name in self.replicas:
            raise SchedulerError(
                f"replica {name!r} is there already; live replicas are {list(self.replicas)}"
            )
        load = self.replicas[name] = ReplicaLoad(name, slots, next(self._ranks))
        self.slots += slots
        self._enter(load)
        return load

    def down(self, name: str) -> None:
        """Removes a replica with what runs on it.

        Raises:
            SchedulerError: If it is not there.
        """
        load = self.replicas.pop(self._known(name).name)
        self.slots -= load.slots
        self.running -= load.running

    def add(self, load: ReplicaLoad, request: Request) -> None:
        """A request got a slot.

        Raises:
            SchedulerError: If its expected tokens or KV are not finite and >= 0.
        """
        if request is not ANY and not (0 <= request.tokens < math.inf and 0 <= request.kv < math.inf):
            self._enter(load)
            raise SchedulerError(
                f"replica {load.name!r}: got {request}, allowed are finite numbers of tokens and kv >= 0"
            )
        load.running += 1
        load.tokens += request.tokens
        load.kv += request.kv
        self.running += 1
        self._enter(load)

    def remove(self, name: str, request: Request) -> ReplicaLoad:
        """A request gave its slot back.

        Raises:
            SchedulerError: If the replica is not there or nothing runs on it.
        """
        load = self._known(name)
        if not load.running:
            raise SchedulerError(f"replica {name!r}: a slot was released, allowed is that of what runs there")
        load.running -= 1
        self.running -= 1
        if load.running:
            load.tokens -= request.tokens
            load.kv -= request.kv
        else:  # sums of floats would leave a rest
            load.tokens = load.kv = 0.0
        self._enter(load)
        return load

    def weigh(self, name: str, weight: float) -> None:
        """Sets the weight of a replica.

        Raises:
            SchedulerError: If it is not there, or the weight is not 0 to 1.
        """
        if not 0 <= weight <= 1:
            raise SchedulerError(f"replica {name!r}: got weight {weight!r}, allowed is 0 to 1")
        load = self._known(name)
        load.weight = weight
        self._enter(load)

    def may_take(self, load: ReplicaLoad, request: Request) -> bool:
        """Whether a replica has a slot and KV for a request; one that is empty has KV for anything."""
        return self._has_room(load) and (load.running == 0 or load.kv + request.kv <= self._kv_tokens)

    def least(self, request: Request, avoid: Collection[str]) -> ReplicaLoad | None:
        """The least loaded replica that may take a request, ties in the order in which they came up.

        The request has to be added to it before the next call.
        """
        heap, passed, refused = self._heap, [], 0
        found = None
        while heap and refused < MOST_REFUSALS:
            entry = heapq.heappop(heap)
            load = self.replicas.get(entry[2])
            if load is None or load.entry is not entry:
                continue
            if entry[2] not in avoid:
                if self.may_take(load, request):
                    found = load
                    break
                refused += 1
            passed.append(entry)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def lowest(self) -> float:
        """Lowest load of the replicas with room, infinity if none has."""
        heap = self._heap
        while heap:
            load = self.replicas.get(heap[0][2])
            if load is not None and load.entry is heap[0]:
                return heap[0][0]
            heapq.heappop(heap)
        return math.inf

    def of(self, load: ReplicaLoad) -> float:
        """Load of a replica with a weight > 0: what runs, for each slot and weight."""
        amount = load.tokens if self._by_tokens else load.running
        return amount / (load.slots * load.weight)

    def _known(self, name: str) -> ReplicaLoad:
        if name not in self.replicas:
            raise SchedulerError(f"replica {name!r} is not there; live replicas are {list(self.replicas)}")
        return self.replicas[name]

    def _has_room(self, load: ReplicaLoad) -> bool:
        return load.running < load.slots and load.weight > 0

    def _enter(self, load: ReplicaLoad) -> None:
        """Enters a replica whose load has changed; what was entered of it before is void."""
        if load.running >= load.slots or load.weight <= 0:
            load.entry = None
            return
        amount = load.tokens if self._by_tokens else load.running
        load.entry = entry = amount / (load.slots * load.weight), load.rank, load.name
        heapq.heappush(self._heap, entry)
        # Void entries below the top would pile up.
        if len(self._heap) > 4 * len(self.replicas):
            self._heap = [each.entry for each in self.replicas.values() if each.entry is not None]
            heapq.heapify(self._heap)
