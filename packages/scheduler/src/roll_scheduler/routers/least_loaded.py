"""The least loaded replica takes the next request."""

from collections.abc import Collection

from roll_scheduler.routers.loads import Loads
from roll_scheduler.routers.router import Request

__all__ = ["LeastLoaded"]


class LeastLoaded:
    """The replica with the lowest load, ties in the order in which they came up; O(log replicas).

    Args:
        by_tokens: What load is: False counts requests, True adds up the tokens they are expected to generate
            yet, so that a replica with two long ones gets less than one with two short ones.
        kv_tokens: KV that fits on a replica; see `Loads`.
    """

    def __init__(self, *, by_tokens: bool = False, kv_tokens: int | None = None) -> None:
        self._loads = Loads(by_tokens=by_tokens, kv_tokens=kv_tokens)

    def up(self, name: str, slots: int) -> None:
        """A replica joined; see `Router`."""
        self._loads.up(name, slots)

    def down(self, name: str) -> None:
        """A replica left; see `Router`."""
        self._loads.down(name)

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot; see `Router`."""
        load = self._loads.least(request, avoid)
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
