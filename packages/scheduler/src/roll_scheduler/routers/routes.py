"""Requests under way in front of engines of your own: where each runs, and what moves when a replica goes."""

from collections.abc import Hashable
from typing import NamedTuple

from roll_scheduler.errors import SchedulerError
from roll_scheduler.routers.router import ANY, Request, Router

__all__ = ["Move", "Routes"]


class Move(NamedTuple):
    """A request that has to be stopped and sent again.

    Attributes:
        id: The request.
        replica: Where it goes; None means that it waits, and `place` is to be called again.
    """

    id: Hashable
    replica: str | None


class Routes:
    """A router together with the requests that it has placed.

        routes = Routes(LeastLoaded())
        routes.up("engine 0", slots=64)
        routes.place("request 1")           # "engine 0", or None: no slot is free
        routes.end("request 1")
        routes.drain("engine 0")            # nothing new goes there; what runs ends there
        for move in routes.migrate("engine 0"):
            ...                             # stop it on engine 0 and send it to move.replica

    Args:
        router: Empty, and this object's alone.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._at: dict[Hashable, tuple[str, Request]] = {}
        self._on: dict[str, dict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def up(self, name: str, slots: int) -> None:
        """A replica joined."""
        self._router.up(name, slots)
        self._on[name] = {}

    def place(
        self, request_id: Hashable, request: Request = ANY, *, avoid: frozenset[str] = frozenset()
    ) -> str | None:
        """The replica that a request is to be sent to, None if it has to wait for a slot.

        Raises:
            SchedulerError: If a request of that id is under way.
        """
        if request_id in self._at:
            raise SchedulerError(
                f"request {request_id!r} is under way on {self._at[request_id][0]!r} already"
            )
        name = self._router.take(request, avoid)
        if name is not None:
            self._at[request_id] = (name, request)
            self._on[name][request_id] = None
        return name

    def where(self, request_id: Hashable) -> str | None:
        """The replica on which a request runs, None if it is not under way."""
        placed = self._at.get(request_id)
        return None if placed is None else placed[0]

    def end(self, request_id: Hashable) -> None:
        """A request ended, well or not; of one that is not under way nothing is kept."""
        placed = self._at.pop(request_id, None)
        if placed is not None:
            self._router.release(*placed)
            del self._on[placed[0]][request_id]

    def drain(self, name: str) -> None:
        """A replica gets no new request; what runs there goes on."""
        self._router.report(name, 0.0)

    def weigh(self, name: str, weight: float) -> None:
        """What a replica is worth, 0 to 1; above 0 ends a drain."""
        self._router.report(name, weight)

    def migrate(self, name: str) -> list[Move]:
        """Drains a replica and moves what runs there, in the order in which it was placed."""
        self.drain(name)
        moving = [(request_id, self._at[request_id][1]) for request_id in self._on[name]]
        for request_id, _ in moving:
            self.end(request_id)
        return [Move(request_id, self.place(request_id, request)) for request_id, request in moving]

    def down(self, name: str) -> list[Move]:
        """A replica is gone; what ran there is placed anew.

        Raises:
            SchedulerError: If it is not there.
        """
        if name not in self._on:
            raise SchedulerError(f"replica {name!r} is not there; live replicas are {list(self._on)}")
        self._router.down(name)
        lost = [(request_id, self._at.pop(request_id)[1]) for request_id in self._on.pop(name)]
        return [Move(request_id, self.place(request_id, request)) for request_id, request in lost]
