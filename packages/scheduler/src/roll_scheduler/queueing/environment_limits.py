"""How many tickets of one environment may be under way at a time. Used by `Departures`."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.flight import Flight
from roll_scheduler.ticket import TicketState

__all__ = ["EnvironmentLimits"]


class EnvironmentLimits:
    """Tickets of limited tags that wait until another of their tag is generated.

    A ticket counts from when it is let through to the slots' queue until it is generated or ended, also while
    it is sent out again.

    Args:
        limits: Tickets at a time by tag, each >= 1; others are not limited.
        tagged: Whether groups have tags.

    Raises:
        SchedulerError: If there are limits, but no tags that they could be for.
    """

    def __init__(self, limits: Mapping[str, int], *, tagged: bool = True) -> None:
        if limits and not tagged:
            raise SchedulerError(f"tag: got None, allowed with concurrency {dict(limits)} is a function")
        self._limits = dict(limits)
        self._under_way: Counter[str] = Counter()
        self._waiting: dict[str, deque[Flight]] = {tag: deque() for tag in limits}

    def __bool__(self) -> bool:
        """Whether there are limits."""
        return bool(self._limits)

    def let_through(self, flights: Sequence[Flight]) -> Sequence[Flight]:
        """Those of some waiting tickets that need not wait here; the others do."""
        return [flight for flight in flights if self._admits(flight)]

    def left(self, flight: Flight) -> list[Flight]:
        """A ticket that counted was generated or ended; returns those that need not wait any longer."""
        if not flight.admitted:
            return []
        flight.admitted = False
        tag = flight.group.tag
        self._under_way[tag] -= 1
        waiting = self._waiting[tag]
        while waiting and self._under_way[tag] < self._limits[tag]:
            first = waiting.popleft()
            if first.state is TicketState.WAITING and self._admits(first):
                return [first]
        return []

    def _admits(self, flight: Flight) -> bool:
        tag = flight.group.tag
        limit = self._limits.get(tag)
        if limit is None or flight.admitted:
            return True
        if self._under_way[tag] < limit:
            self._under_way[tag] += 1
            flight.admitted = True
            return True
        self._waiting[tag].append(flight)
        return False
