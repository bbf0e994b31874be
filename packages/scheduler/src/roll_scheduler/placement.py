"""Which replica takes the next ticket: the least loaded, ties in the order in which replicas came up."""

import heapq
import itertools
from collections.abc import Mapping

from roll_scheduler.errors import SchedulerError

__all__ = ["ReplicaSlots"]


class ReplicaSlots:
    """Free slots of the live replicas, used by the core.

    Args:
        replicas: Slots by name, each >= 1.

    Raises:
        SchedulerError: If there is no replica or one without a slot.
    """

    def __init__(self, replicas: Mapping[str, int]) -> None:
        if not replicas:
            raise SchedulerError("replicas: got none, at least one is needed")
        self._slots: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._rank: dict[str, int] = {}
        self._ranks = itertools.count()
        self._by_load: list[tuple[float, int, str]] = []
        self._free = 0
        self.lost: dict[str, str] = {}
        self.returning: set[str] = set()
        for name, slots in replicas.items():
            self.up(name, slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    @property
    def full(self) -> bool:
        """Whether no replica has a free slot."""
        return self._free == 0

    def names(self) -> list[str]:
        """Names of the live replicas in the order in which they came up."""
        return list(self._slots)

    def up(self, name: str, slots: int) -> None:
        """Adds a replica."""
        if slots < 1:
            raise SchedulerError(f"replica {name!r}: got {slots} slots, allowed is >= 1")
        if name in self._slots:
            raise SchedulerError(f"replica {name!r} is there already; live replicas are {self.names()}")
        self._slots[name] = slots
        self._running[name] = 0
        self._rank[name] = next(self._ranks)
        self._free += slots
        self._offer(name)
        self.lost.pop(name, None)
        self.returning.discard(name)

    def down(self, name: str, reason: str, *, returns: bool = False) -> None:
        """Removes a replica together with what runs on it; it may be one that `returns`."""
        if name not in self._slots:
            raise SchedulerError(f"replica {name!r} is not there; live replicas are {self.names()}")
        self._free -= self._slots.pop(name) - self._running.pop(name)
        self.lost[name] = reason
        if returns:
            self.returning.add(name)

    def take(self, avoid: frozenset[str] = frozenset()) -> str | None:
        """Takes a slot and returns its replica, None if there is none.

        Args:
            avoid: Replicas that are not wanted; ignored if no other replica is live.
        """
        if self.full:
            return None
        if avoid and avoid.issuperset(self._slots):
            avoid = frozenset()
        passed, taken = [], None
        while self._by_load and taken is None:
            offer = heapq.heappop(self._by_load)
            name = offer[2]
            if name not in self._slots or offer != self._offer_of(name):
                continue
            if name in avoid:
                passed.append(offer)
            else:
                taken = name
        for offer in passed:
            heapq.heappush(self._by_load, offer)
        if taken is not None:
            self._running[taken] += 1
            self._free -= 1
            self._offer(taken)
        return taken

    def release(self, name: str) -> None:
        """Gives a slot back."""
        self._running[name] -= 1
        self._free += 1
        self._offer(name)

    def _offer(self, name: str) -> None:
        """Enters a replica whose load has changed; what was entered of it before is void."""
        if self._has_room(name):
            heapq.heappush(self._by_load, self._offer_of(name))
        # Void entries below the top would pile up.
        if len(self._by_load) > 4 * len(self._slots):
            self._by_load = [self._offer_of(each) for each in self._slots if self._has_room(each)]
            heapq.heapify(self._by_load)

    def _offer_of(self, name: str) -> tuple[float, int, str]:
        return self._running[name] / self._slots[name], self._rank[name], name

    def _has_room(self, name: str) -> bool:
        return self._running[name] < self._slots[name]
