"""Requests of one conversation go to one replica: consistent hashing with bounded loads."""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Collection, Hashable

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.routers.loads import Loads, ReplicaLoad
from roll_scheduler.routers.router import Request

__all__ = ["SessionAffinity"]

POINTS = 64
"""Points of a replica on the ring: shares of the keys then differ by some 12 % between replicas."""

MOST_TRIED = 8
"""Replicas along the ring that are asked before the least loaded is."""


class SessionAffinity:
    """A session's requests go to the replica that its key hashes to, the same in every process.

    When that replica has more than `imbalance` times its share of what runs, the request spills to the next
    on the ring, and its session stays there, with its KV. When a replica leaves, only its sessions move.
    Requests without a session are hashed by `prefix`, and those with neither go to the least loaded.

    Source: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads, arXiv 1608.01350.

    Args:
        imbalance: Times the mean busy share of slots that a replica may have, > 1.
        remembered: Sessions that have spilled and are remembered, >= 0; the oldest is forgotten first.
        kv_tokens: KV that fits on a replica; see `Loads`.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    def __init__(
        self, *, imbalance: float = 1.25, remembered: int = 65_536, kv_tokens: int | None = None
    ) -> None:
        if not (is_finite(imbalance) and imbalance > 1):
            raise SchedulerError(f"SessionAffinity.imbalance: got {imbalance!r}, allowed is > 1")
        if not (is_finite(remembered) and remembered >= 0):
            raise SchedulerError(f"SessionAffinity.remembered: got {remembered!r}, allowed is >= 0")
        self._imbalance = imbalance
        self._remembered = remembered
        self._loads = Loads(kv_tokens=kv_tokens)
        self._ring: list[tuple[int, str]] = []
        self._in_order = True
        self._spilled: dict[Hashable, str] = {}

    def up(self, name: str, slots: int) -> None:
        """A replica joined; see `Router`."""
        self._loads.up(name, slots)
        self._ring += [(_point(f"{name}/{number}"), name) for number in range(POINTS)]
        self._in_order = False

    def down(self, name: str) -> None:
        """A replica left; see `Router`."""
        self._loads.down(name)
        self._ring = [entry for entry in self._ring if entry[1] != name]
        self._spilled = {key: where for key, where in self._spilled.items() if where != name}

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot; see `Router`."""
        key = request.prefix if request.session is None else request.session
        load = self._loads.least(request, avoid) if key is None else self._on_ring(key, request, avoid)
        if load is None:
            return None
        self._loads.add(load, request)
        return load.name

    def release(self, name: str, request: Request) -> None:
        """Gives a slot back; see `Router`."""
        self._loads.remove(name, request)

    def report(self, name: str, weight: float) -> None:
        """Sets a replica's weight; see `Router`."""
        self._loads.weigh(name, weight)

    def _on_ring(self, key: Hashable, request: Request, avoid: Collection[str]) -> ReplicaLoad | None:
        where = self._spilled.pop(key, None)
        if where is not None and self._welcomes(where, request, avoid):
            self._spilled[key] = where
            return self._loads.replicas[where]
        if not self._in_order:  # once for all replicas that came up since
            self._ring.sort()
            self._in_order = True
        tried: set[str] = set()
        first = bisect_left(self._ring, (_point(repr(key)), ""))
        for step in range(len(self._ring)):
            name = self._ring[(first + step) % len(self._ring)][1]
            if name in tried:
                continue
            if self._welcomes(name, request, avoid):
                if tried:
                    self._remember(key, name)
                return self._loads.replicas[name]
            tried.add(name)
            if len(tried) == min(MOST_TRIED, len(self._loads.replicas)):
                break
        load = self._loads.least(request, avoid)
        if load is not None:
            self._remember(key, load.name)
        return load

    def _remember(self, key: Hashable, name: str) -> None:
        self._spilled[key] = name
        if len(self._spilled) > self._remembered:
            del self._spilled[next(iter(self._spilled))]

    def _welcomes(self, name: str, request: Request, avoid: Collection[str]) -> bool:
        load = self._loads.replicas[name]
        if name in avoid or not self._loads.may_take(load, request):
            return False
        share = (self._loads.running + 1) * load.slots * load.weight / self._loads.slots
        return load.running < math.ceil(self._imbalance * share)


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
