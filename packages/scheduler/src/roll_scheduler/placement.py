"""Which replica takes the next ticket: the least loaded, ties in the order in which replicas came up."""

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
        self._free = 0
        self.lost: dict[str, str] = {}
        self.returning: set[str] = set()
        for name, slots in replicas.items():
            self.up(name, slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

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
        self._free += slots
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
        if self._free == 0:
            return None
        if avoid and avoid.issuperset(self._slots):
            avoid = frozenset()
        best, least = None, 1.0
        for name, slots in self._slots.items():
            load = self._running[name] / slots
            if load < least and name not in avoid:
                best, least = name, load
                if load == 0.0:
                    break
        if best is not None:
            self._running[best] += 1
            self._free -= 1
        return best

    def release(self, name: str) -> None:
        """Gives a slot back."""
        self._running[name] -= 1
        self._free += 1
