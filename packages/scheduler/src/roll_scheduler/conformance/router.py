"""Tests that any router can be run through; for whoever writes one."""

from collections import Counter
from collections.abc import Callable
from random import Random

from roll_scheduler.routers.router import Request, Router

__all__ = ["check_router"]

STEPS = 400
SLOTS = {"a": 1, "b": 3, "c": 8, "d": 2}


def check_router(new_router: Callable[[], Router], *, seed: int = 0) -> list[str]:
    """Sentences that say what is wrong with a router; empty if it may be used.

    Replicas come, go, are drained and come back, requests come and end, in 400 random steps. Checked: no
    replica gets more than its slots, nor a request while it is drained, gone or to be avoided; a request is
    refused only where there is no slot for it; and two routers that are told the same choose the same.

    Args:
        new_router: Makes one that has no replica and limits no KV.
        seed: Of the steps.
    """
    trial = _Trial(new_router)
    random = Random(seed)
    try:
        for name in SLOTS:
            trial.up(name)
        for _ in range(STEPS):
            trial.step(random)
    except Exception as error:  # boundary to the router under test: what it raises is the finding
        return [*trial.problems, f"it raised {type(error).__name__}: {error}"]
    return trial.problems


class _Trial:
    """The router under test, its twin, and the books it should keep."""

    def __init__(self, new_router: Callable[[], Router]) -> None:
        self._routers = [new_router(), new_router()]
        self._live: set[str] = set()
        self._drained: set[str] = set()
        self._running: list[tuple[str, Request]] = []
        self._count: Counter[str] = Counter()
        self.problems: list[str] = []

    def up(self, name: str) -> None:
        self._live.add(name)
        for router in self._routers:
            router.up(name, SLOTS[name])

    def step(self, random: Random) -> None:
        what = random.random()
        name = random.choice(sorted(SLOTS))
        if what < 0.5:
            self._take(random)
        elif what < 0.9 and self._running:
            where, request = self._running.pop(random.randrange(len(self._running)))
            self._count[where] -= 1
            for router in self._routers:
                router.release(where, request)
        elif what < 0.95 and name in self._live:
            self._weigh(name, random.choice((0.0, 0.5, 1.0)))
        elif name not in self._live:
            self.up(name)
        elif len(self._live) > 1:
            self._down(name)

    def _down(self, name: str) -> None:
        self._live.discard(name)
        self._drained.discard(name)
        self._running = [(where, request) for where, request in self._running if where != name]
        del self._count[name]
        for router in self._routers:
            router.down(name)

    def _weigh(self, name: str, weight: float) -> None:
        (self._drained.discard if weight else self._drained.add)(name)
        for router in self._routers:
            router.report(name, weight)

    def _take(self, random: Random) -> None:
        request = Request(
            tokens=random.uniform(1, 100),
            prefix=random.choice((None, 1, 2, 3)),
            session=random.choice((None, "x", "y")),
        )
        avoid = frozenset(random.sample(sorted(SLOTS), random.choice((0, 0, 1, 2))))
        able = {name for name in self._live - self._drained - avoid if self._count[name] < SLOTS[name]}
        taken, twin = (router.take(request, avoid) for router in self._routers)
        call = f"take({request}, {sorted(avoid)}) with room on {sorted(able)}"
        if taken != twin:
            self.problems.append(f"{call} returned {taken!r}, and of a second router {twin!r}")
        if (taken is None) != (not able) or (taken is not None and taken not in able):
            self.problems.append(f"{call} returned {taken!r}")
        if taken is not None:
            self._running.append((taken, request))
            self._count[taken] += 1
