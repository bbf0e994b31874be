"""Which replica holds the KV of which group's prompt, as far as members of the group still wait."""

import itertools
from collections.abc import Iterator

from roll_scheduler.queueing.placement import ReplicaSlots

__all__ = ["PromptHomes"]

MOST_ASKED = 16
"""Groups of one replica that are offered for a slot of it."""


class PromptHomes:
    """The replica on which the first member of each group started, for the orders of waiting tickets.

    Args:
        replicas: Tells which have given slots back.
    """

    def __init__(self, replicas: ReplicaSlots) -> None:
        self._replicas = replicas
        self._home: dict[int, str] = {}
        self._at: dict[str, dict[int, None]] = {}
        self._asked: str | None = None

    def settle(self, group: int, replica: str) -> None:
        """A group started on a replica; when it has a home already, it keeps it."""
        if group not in self._home:
            self._home[group] = replica
            self._at.setdefault(replica, {})[group] = None

    def leave(self, group: int) -> None:
        """No member of a group waits any more."""
        home = self._home.pop(group, None)
        if home is not None:
            del self._at[home][group]
            if not self._at[home]:
                del self._at[home]

    def offers(self) -> Iterator[int]:
        """Groups that have their home on a replica with a free slot, oldest first, replica by replica.

        What is not taken of a replica's before the next is asked is not offered for this slot again.
        """
        freed = self._replicas.freed
        while freed:
            name = next(iter(freed))
            if self._replicas.has_room(name):
                self._asked = name
                yield from tuple(itertools.islice(self._at.get(name, ()), MOST_ASKED))
            freed.pop(name, None)
        self._asked = None

    def taken(self, replica: str) -> None:
        """The group that was offered last, or another, got a slot of this replica."""
        if self._asked is not None and replica != self._asked:
            # It has too much already: its groups go on elsewhere.
            self._replicas.freed.pop(self._asked, None)
        self._asked = None
