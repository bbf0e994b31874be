"""Which replica takes the next request: the seam, and what a router is told. `routers` has implementations.

The core asks a router for a slot for each ticket. It works as well in front of engines of your own:

    router = LeastLoaded()
    router.up("engine 0", slots=2)
    router.up("engine 1", slots=2)
    request = Request(prefix="prompt 7")
    name = router.take(request)         # "engine 0"; None would mean: wait until one is released
    ...                                 # send it there
    router.release(name, request)

Failing or slow replicas are weighted down by `report` (see `ReplicaHealth`), a weight of 0 drains one;
`Routes` keeps the requests under way and moves those of a drained replica.
"""

from collections.abc import Collection, Hashable
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["ANY", "Request", "Router"]


class Request(NamedTuple):
    """What a router may know of a request, for example `Request(tokens=900.0, prefix=12)`.

    Attributes:
        tokens: Tokens that it is expected to generate yet, > 0.
        kv: Tokens of KV that it is expected to hold at its end, >= 0.
        prefix: Equal for requests that share a prompt; None for none.
        session: Equal for requests of one conversation; None for none.
    """

    tokens: float = 1.0
    kv: float = 0.0
    prefix: Hashable | None = None
    session: Hashable | None = None


ANY = Request()
"""One of which nothing is known."""


@runtime_checkable
class Router(Protocol):
    """Slots of replicas, and the choice among them.

    `roll_scheduler.conformance.router.check_router` tests an implementation.
    """

    def up(self, name: str, slots: int) -> None:
        """A replica joined, with so many slots (>= 1) and weight 1."""
        ...

    def down(self, name: str) -> None:
        """A replica left; what ran on it is not released any more."""
        ...

    def take(self, request: Request, avoid: Collection[str] = ()) -> str | None:
        """Takes a slot for a request and returns its replica, None if none may take it now.

        Args:
            request: The request.
            avoid: Replicas that must not take it.
        """
        ...

    def release(self, name: str, request: Request) -> None:
        """A request ended; the same that `take` placed there."""
        ...

    def report(self, name: str, weight: float) -> None:
        """What a replica is worth from now on: 1 is healthy, less gets less, 0 gets nothing new (drain)."""
        ...
