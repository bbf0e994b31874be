"""Waiting tickets in order of predicted length, the longest first. Used by the dispatch queue."""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.flight import Flight, FlightGroup
from roll_scheduler.numbers import is_finite
from roll_scheduler.queueing.prompt_homes import PromptHomes
from roll_scheduler.queueing.waiting import first_waiting
from roll_scheduler.ticket import TicketState

__all__ = ["LengthEstimator", "LongestFirst", "predicted"]

FEWEST_TAKEN = 8
MOST_RUNNING = 4
NEARLY = 0.7
"""Part of the greatest predicted length that is long enough for a group to start where its prompt is."""


@runtime_checkable
class LengthEstimator(Protocol):
    """Predicts lengths; `LengthPredictor` is one."""

    def observe(self, key: Hashable, domain: str, tokens: float, truncated: bool = False) -> None:
        """A completion of the prompt `key` ended (`truncated`: was stopped) with so many tokens."""
        ...

    def expected(
        self, key: Hashable, domain: str = "", *, so_far: float = 0.0, running: Sequence[float] = ()
    ) -> float:
        """Tokens of a completion that has `so_far`, while others of its prompt run and have `running`."""
        ...


def predicted(
    estimator: LengthEstimator, group: FlightGroup, *, so_far: float = 0.0, running: Sequence[float] = ()
) -> float:
    """Tokens that an estimator, maybe one of the caller's, expects of a completion of a group, >= `so_far`.

    Raises:
        SchedulerError: If it expects no finite number: the ticket could not be compared with others.
    """
    tokens = estimator.expected(group.key, group.tag, so_far=so_far, running=running)
    if not math.isfinite(tokens):
        raise SchedulerError(
            f"estimator: got {tokens!r} expected tokens for group {group.id} (key {group.key!r}), allowed is "
            "a finite number"
        )
    return max(tokens, so_far)


class _Waiting:
    """A group of which tickets wait."""

    __slots__ = ("flights", "group", "index", "length", "stamp", "started")

    def __init__(self, flights: Sequence[Flight], index: int) -> None:
        self.flights = deque(flights)
        self.group: FlightGroup = flights[0].group
        self.index = index
        self.length = 0.0
        self.stamp = 0
        self.started = 0


class LongestFirst:
    """The ticket that will probably take longest starts first, so that it does not end alone.

    Members of a group that wait have one prediction, so the order is one of groups: O(log groups) a ticket.
    It is made anew when a member ends, and from time to time for what runs without an end. Of equals the
    group with fewer members under way goes first: one member of each tells which groups are long. Tickets
    that have lost their replica start before all.

    Args:
        estimator: Predicts lengths.
        patience: No group is passed over by one that came more than this many groups later, >= 1.
        homes: Where prompts have their KV; a slot that becomes free there then goes to the group, if it is
            nearly as long as the longest. None for no such preference.
    """

    def __init__(
        self, estimator: LengthEstimator, *, patience: int, homes: PromptHomes | None = None
    ) -> None:
        self._estimator = estimator
        self._homes = homes
        self._patience = patience
        self._back: deque[Flight] = deque()
        self._groups: dict[int, _Waiting] = {}
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._arrived = 0
        self._newest = -1
        self._taken = 0
        self._tokens_s = 0.0

    def extend(self, flights: Sequence[Flight]) -> None:
        """Tickets of one group come to wait; see `WaitingOrder`."""
        if not flights:
            return
        waiting = _Waiting(flights, self._arrived)
        self._arrived += 1
        before = self._groups.get(waiting.group.id)
        if before is not None:  # the group begins anew
            self._leave(before)
        self._groups[waiting.group.id] = waiting
        waiting.length = predicted(self._estimator, waiting.group)
        self._enter(waiting)

    def put_back(self, flights: Sequence[Flight]) -> None:
        """Tickets come back; see `WaitingOrder`."""
        self._back.extendleft(reversed(flights))

    def head(self, now: float) -> Flight | None:
        """See `WaitingOrder`."""
        if (flight := first_waiting(self._back)) is not None:
            return flight
        if self._taken >= max(FEWEST_TAKEN, 2 * len(self._groups)):
            self._refresh(now)
        while self._groups:
            oldest = next(iter(self._groups.values()))
            late = self._newest - oldest.index >= self._patience
            waiting = oldest if late else self._nearest(self._longest())
            if (flight := first_waiting(waiting.flights)) is not None:
                return flight
            self._leave(waiting)
        self._heap.clear()
        return None

    def taken(self, flight: Flight, replica: str) -> None:
        """The head got a slot; see `WaitingOrder`."""
        if self._homes is not None:
            self._homes.taken(replica)
        if self._back and self._back[0] is flight:
            self._back.popleft()
            return
        self._taken += 1
        waiting = self._groups[flight.group.id]
        waiting.flights.popleft()
        waiting.started += 1
        self._newest = max(self._newest, waiting.index)
        if not waiting.flights:
            self._leave(waiting)
            return
        self._enter(waiting)
        if self._homes is not None:
            self._homes.settle(flight.group.id, replica)

    def expected(self, group: FlightGroup) -> float:
        """Predicted tokens of a waiting ticket of a group."""
        waiting = self._groups.get(group.id)
        if waiting is not None:
            return waiting.length
        return predicted(self._estimator, group)

    def left(self, flight: Flight, now: float) -> tuple[float, float]:
        """Predicted tokens and seconds until a ticket that runs ends; both 0 before any has ended."""
        if not self._tokens_s:
            return 0.0, 0.0
        so_far, group = self._so_far(flight, now), flight.group
        tokens = predicted(self._estimator, group, so_far=so_far) - so_far
        return tokens, tokens / self._tokens_s

    def finished(self, flight: Flight, tokens: int, now: float) -> None:
        """A ticket that had a slot ended; the estimator knows already."""
        if now > flight.since:
            rate = (tokens - flight.kept) / (now - flight.since)
            self._tokens_s += (rate - self._tokens_s) * (0.05 if self._tokens_s else 1.0)
        waiting = self._groups.get(flight.group.id)
        if waiting is not None:
            self._predict(waiting, now, ended=flight)
            self._enter(waiting)

    def state(self) -> dict[str, Any]:
        """How fast tokens came, as JSON; lengths are the estimator's."""
        return {"tokens_s": self._tokens_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`.

        Raises:
            SchedulerError: If it is not one.
        """
        tokens_s = state.get("tokens_s")
        if not (is_finite(tokens_s) and tokens_s >= 0):
            raise SchedulerError(f"LongestFirst.restore: got tokens_s {tokens_s!r}, allowed is a number >= 0")
        self._tokens_s = float(tokens_s)

    def _predict(self, waiting: _Waiting, now: float, *, ended: Flight | None = None) -> None:
        running = []
        if self._tokens_s:
            for flight in waiting.group.flights:
                if flight.state is TicketState.RUNNING and flight is not ended:
                    running.append(self._so_far(flight, now))
                    if len(running) == MOST_RUNNING:
                        break
        waiting.length = predicted(self._estimator, waiting.group, running=running)

    def _so_far(self, flight: Flight, now: float) -> float:
        return flight.kept + (now - flight.since) * self._tokens_s

    def _refresh(self, now: float) -> None:
        """Predicts all anew. It is called once in at least twice as many tickets as there are groups."""
        self._taken = 0
        self._heap = []
        for waiting in self._groups.values():
            self._predict(waiting, now)
            waiting.stamp += 1
            self._heap.append(self._entry(waiting))
        heapq.heapify(self._heap)

    def _longest(self) -> _Waiting:
        """The group on top of the heap; there is one, as each waiting group has a valid entry."""
        heap, groups = self._heap, self._groups
        while True:
            entry = heap[0]
            waiting = groups.get(entry[4])
            if waiting is not None and waiting.stamp == entry[3] and waiting.index == entry[2]:
                return waiting
            heapq.heappop(heap)

    def _nearest(self, longest: _Waiting) -> _Waiting:
        """A group nearly as long that has its home where a slot is free, else the longest.

        One of which nothing has started yet goes first: it may be longer than it looks.
        """
        if self._homes is not None and longest.started:
            for group in self._homes.offers():
                if self._groups[group].length >= longest.length * NEARLY:
                    return self._groups[group]
        return longest

    def _leave(self, waiting: _Waiting) -> None:
        del self._groups[waiting.group.id]
        if self._homes is not None:
            self._homes.leave(waiting.group.id)

    def _enter(self, waiting: _Waiting) -> None:
        waiting.stamp += 1
        heapq.heappush(self._heap, self._entry(waiting))
        if len(self._heap) > 4 * len(self._groups) + 64:
            self._heap = [self._entry(each) for each in self._groups.values()]
            heapq.heapify(self._heap)

    @staticmethod
    def _entry(waiting: _Waiting) -> tuple[float, int, int, int, int]:
        return -waiting.length, waiting.started, waiting.index, waiting.stamp, waiting.group.id
