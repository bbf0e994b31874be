"""Slots of the live replicas as the core keeps them; a router chooses among them."""

from collections.abc import Mapping, Set

from roll_scheduler.errors import SchedulerError
from roll_scheduler.routers.least_loaded import LeastLoaded
from roll_scheduler.routers.router import ANY, Request, Router

__all__ = ["ReplicaSlots"]


class ReplicaSlots:
    """Which replicas there are and how many slots they have free, used by the core.

    Args:
        replicas: Slots by name, each >= 1.
        router: Which replica takes the next ticket; by default the least loaded, ties in the order in which
            replicas came up. It is this object's alone, and empty.

    Attributes:
        lost: Why replicas that are gone left.
        returning: Those of them that come back.
        draining: Live replicas that get nothing new.
        freed: Live replicas that got a slot back, until somebody takes them out; in that order.

    Raises:
        SchedulerError: If there is no replica or one without a slot.
    """

    def __init__(self, replicas: Mapping[str, int], router: Router | None = None) -> None:
        given: object = replicas
        if not isinstance(given, Mapping) or not given:
            raise SchedulerError(f"replicas: got {given!r}, allowed are slots by name, of at least one")
        self._router = LeastLoaded() if router is None else router
        self._slots: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._free = 0
        self.lost: dict[str, str] = {}
        self.returning: set[str] = set()
        self.draining: set[str] = set()
        self.freed: dict[str, None] = {}
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

    @property
    def slots(self) -> int:
        """Slots of the live replicas, free or not."""
        return sum(self._slots.values())

    def has_room(self, name: str) -> bool:
        """Whether a live replica has a free slot and takes something."""
        return self._running[name] < self._slots[name] and name not in self.draining

    def names(self) -> list[str]:
        """Names of the live replicas in the order in which they came up."""
        return list(self._slots)

    def up(self, name: str, slots: int) -> None:
        """Adds a replica."""
        if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
            raise SchedulerError(f"replica {name!r}: got {slots!r} slots, allowed is an integer >= 1")
        if name in self._slots:
            raise SchedulerError(f"replica {name!r} is there already; live replicas are {self.names()}")
        self._router.up(name, slots)
        self._slots[name] = slots
        self._running[name] = 0
        self._free += slots
        self.lost.pop(name, None)
        self.returning.discard(name)

    def down(self, name: str, reason: str, *, returns: bool = False) -> None:
        """Removes a replica together with what runs on it; it may be one that `returns`."""
        self._check(name)
        self._router.down(name)
        self._free -= self._slots.pop(name) - self._running.pop(name)
        self.draining.discard(name)
        self.freed.pop(name, None)
        self.lost[name] = reason
        if returns:
            self.returning.add(name)

    def drain(self, name: str, *, on: bool = True) -> None:
        """A live replica gets nothing new, or, with `on` False, takes its share again."""
        self._check(name)
        (self.draining.add if on else self.draining.discard)(name)
        self._router.report(name, 0.0 if on else 1.0)

    def weigh(self, name: str, weight: float) -> None:
        """What a live replica is worth, > 0 to 1; one that is draining goes on draining."""
        if name not in self.draining:
            self._router.report(name, weight)

    def take(self, avoid: Set[str] = frozenset(), request: Request = ANY) -> str | None:
        """Takes a slot and returns its replica, None if there is none.

        Args:
            avoid: Replicas that are not wanted; ignored if no other replica takes anything.
            request: What the router may know of the ticket.
        """
        if not self._free:
            return None
        if avoid and self._slots.keys() - self.draining <= avoid:
            avoid = frozenset()
        taken = self._router.take(request, avoid)
        if taken is not None:
            self._running[taken] += 1
            self._free -= 1
        return taken

    def release(self, name: str, request: Request = ANY) -> None:
        """Gives a slot back that was taken with the same request."""
        self._router.release(name, request)
        self._running[name] -= 1
        self._free += 1
        self.freed[name] = None

    def _check(self, name: str) -> None:
        if name not in self._slots:
            raise SchedulerError(f"replica {name!r} is not there; live replicas are {self.names()}")
