"""The less loaded of two replicas that are drawn at random."""

from collections.abc import Collection
from random import Random

from roll_scheduler.routers.loads import Loads, ReplicaLoad
from roll_scheduler.routers.router import Request

__all__ = ["PowerOfTwo"]


class PowerOfTwo:
    """Two replicas are drawn and the less loaded takes the request: nearly balanced at O(1) a request.

    Where loads are reported late, it keeps requests from all running to the replica that looked idle last. If
    neither of the two may take it, the least loaded of all does.

    Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 2001.

    Args:
        seed: Of the draws.
        by_tokens: What load is; see `LeastLoaded`.
        kv_tokens: KV that fits on a replica; see `Loads`.
    """

    def __init__(self, *, seed: int = 0, by_tokens: bool = False, kv_tokens: int | None = None) -> None:
        self._loads = Loads(by_tokens=by_tokens, kv_tokens=kv_tokens)
        self._random = Random(seed)
        self._names: list[str] = []

    def up(self, name: str, slots: int) -> None:
        """A replica joined; see `Router`."""
        self._loads.up(name, slots)
        self._names.append(name)

    def down(self, name: str) -> None:
        """A replica left; see `Router`."""
        self._loads.down(name)
        self._names.remove(name)

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot; see `Router`."""
        if not self._names:
            return None
        drawn = [self._drawn(request, avoid), self._drawn(request, avoid)]
        able = [load for load in drawn if load is not None]
        load = min(able, key=self._loads.of) if able else self._loads.least(request, avoid)
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

    def _drawn(self, request: Request, avoid: Collection[str]) -> ReplicaLoad | None:
        name = self._names[int(self._random.random() * len(self._names))]
        load = self._loads.replicas[name]
        return load if name not in avoid and self._loads.may_take(load, request) else None
