"""Requests with one prompt go where its KV is."""

import math
from collections.abc import Collection, Hashable

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.routers.loads import Loads, ReplicaLoad
from roll_scheduler.routers.router import Request

__all__ = ["PrefixAffinity"]


class PrefixAffinity:
    """A request goes to a replica on which another with its `prefix` runs, else to the least loaded.

    It never waits for a slot there while another replica has one, and the replica it goes to has at most
    `slack` more of its slots busy than the least loaded.

    Args:
        slack: Share of a replica's slots, 0 to 1. At 0 only equally loaded replicas are preferred.
        kv_tokens: KV that fits on a replica; see `Loads`.

    Raises:
        SchedulerError: If `slack` is out of its range.
    """

    def __init__(self, *, slack: float = 0.25, kv_tokens: int | None = None) -> None:
        if not (is_finite(slack) and 0 <= slack <= 1):
            raise SchedulerError(f"PrefixAffinity.slack: got {slack!r}, allowed is 0 to 1")
        self._slack = slack
        self._loads = Loads(kv_tokens=kv_tokens)
        self._holders: dict[Hashable, dict[str, int]] = {}

    def up(self, name: str, slots: int) -> None:
        """A replica joined; see `Router`."""
        self._loads.up(name, slots)

    def down(self, name: str) -> None:
        """A replica left; see `Router`."""
        self._loads.down(name)
        for prefix in [prefix for prefix, held in self._holders.items() if name in held]:
            self._forget(prefix, name)

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot; see `Router`."""
        load = self._holder(request, avoid) or self._loads.least(request, avoid)
        if load is None:
            return None
        self._loads.add(load, request)
        if request.prefix is not None:
            held = self._holders.setdefault(request.prefix, {})
            held[load.name] = held.get(load.name, 0) + 1
        return load.name

    def release(self, name: str, request: Request) -> None:
        """Gives a slot back; see `Router`."""
        self._loads.remove(name, request)
        if request.prefix is not None:
            self._holders[request.prefix][name] -= 1
            if not self._holders[request.prefix][name]:
                self._forget(request.prefix, name)

    def report(self, name: str, weight: float) -> None:
        """Sets a replica's weight; see `Router`."""
        self._loads.weigh(name, weight)

    def _holder(self, request: Request, avoid: Collection[str]) -> ReplicaLoad | None:
        """The least loaded of the replicas that hold the prefix and may take the request."""
        held = self._holders.get(request.prefix) if request.prefix is not None else None
        if not held:
            return None
        best, best_load = None, math.inf
        for name in held:
            load = self._loads.replicas[name]
            if name in avoid or not self._loads.may_take(load, request):
                continue
            if (busy := self._loads.of(load)) < best_load:
                best, best_load = load, busy
        if best is None or best_load > self._loads.lowest() + self._slack:
            return None
        return best

    def _forget(self, prefix: Hashable, name: str) -> None:
        held = self._holders[prefix]
        del held[name]
        if not held:
            del self._holders[prefix]
