"""A queue in front of a fleet, without a scheduler: any free slot takes the next. Used by the peers."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable

from roll_scheduler.simulator.engine_model import Sequence
from roll_scheduler.simulator.fleet import Fleet
from roll_scheduler.simulator.setting import Workload

__all__ = ["Completion", "SlotQueue"]


class Completion:
    """A completion that a peer wants.

    Attributes:
        group: Occurrence number of the prompt.
        member: Index in the group.
        tokens: Its length.
        sequence: What engines know of it; it keeps the tokens that it has when it is stopped.
        replica: Where it runs, None if it does not.
        version: That of its first token, set by whoever counts versions.
    """

    __slots__ = ("group", "member", "replica", "sequence", "tokens", "version")

    def __init__(self, workload: Workload, group: int, member: int, key: int) -> None:
        self.group = group
        self.member = member
        self.tokens = workload.tokens(group, member)
        self.sequence = Sequence(key, group=group, tokens=self.tokens, prompt=workload.prompt_tokens)
        self.replica: int | None = None
        self.version = 0


class SlotQueue:
    """First come, first served, each to the replica with the lowest share of busy slots.

    Args:
        fleet: Where slots are.
        started: Called with each completion that gets a slot.
    """

    def __init__(self, fleet: Fleet, started: Callable[[Completion], None] | None = None) -> None:
        self._fleet = fleet
        self._started = started
        self._slots = [model.slots for model in fleet.models]
        self._load = [0] * len(fleet)
        self._by_share = [(0.0, index) for index in range(len(fleet))]
        self._closed: set[int] = set()
        self._waiting: deque[Completion] = deque()
        self._waits: set[int] = set()
        self._running: dict[int, Completion] = {}
        self._over: list[Completion] = []
        self.now = 0.0

    @property
    def size(self) -> int:
        """Completions that run or wait."""
        return len(self._running) + len(self._waits) + len(self._over)

    def add(self, completions: Iterable[Completion]) -> None:
        """Queues completions behind those that wait."""
        for completion in completions:
            self._waiting.append(completion)
            self._waits.add(completion.sequence.key)
        self._fill()

    def next_at(self) -> float:
        """When the next completion may end, infinity if none runs."""
        return self.now if self._over else self._fleet.next_at()

    def wait(self, until: float = math.inf) -> list[Completion]:
        """Goes on to the next end, or to `until`, and returns what has ended; its slots are taken again."""
        if self._over:
            ended, self._over = self._over, []
            return ended
        self.now = max(self.now, min(self._fleet.next_at(), until))
        ended = []
        for index, sequence in self._fleet.advance(self.now):
            completion = self._running.pop(sequence.key)
            completion.replica = None
            self._release(index)
            ended.append(completion)
            self._fill()
        return ended

    def stop(self, completions: Iterable[Completion]) -> None:
        """Takes completions out, running or waiting; their sequences keep what they have generated."""
        for completion in completions:
            key = completion.sequence.key
            # What waits stays in line and is passed over later.
            self._waits.discard(key)
            self._running.pop(key, None)
            if completion.replica is not None:
                self._fleet.remove(completion.replica, completion.sequence, self.now)
                self._release(completion.replica)
                completion.replica = None
        self._fill()

    def close(self, replicas: Iterable[int]) -> None:
        """These replicas get nothing any more; what runs there goes on elsewhere with its tokens, first."""
        self._closed.update(replicas)
        moved = [item for item in self._running.values() if item.replica in self._closed]
        for completion in moved:
            key, index = completion.sequence.key, completion.replica
            del self._running[key]
            if index is not None:
                self._fleet.remove(index, completion.sequence, self.now)
                self._load[index] -= 1
            completion.replica = None
        # What ended in the very iteration that is cut has nothing left to do elsewhere.
        over = [item for item in moved if item.sequence.done >= item.tokens]
        self._over += over
        over_keys = {item.sequence.key for item in over}
        for completion in reversed([item for item in moved if item.sequence.key not in over_keys]):
            self._waiting.appendleft(completion)
            self._waits.add(completion.sequence.key)
        self._fill()

    def open(self) -> None:
        """All replicas take completions again."""
        for index in sorted(self._closed):
            heapq.heappush(self._by_share, (self._load[index] / self._slots[index], index))
        self._closed.clear()
        self._fill()

    def idle(self, seconds: float, *, sync: bool = False) -> None:
        """Nothing is generated for some seconds, which pass."""
        self.now = self._fleet.stall(self.now, seconds, sync=sync)

    def _fill(self) -> None:
        while self._waiting:
            if self._waiting[0].sequence.key not in self._waits:
                self._waiting.popleft()
                continue
            index = self._take()
            if index is None:
                return
            completion = self._waiting.popleft()
            self._waits.discard(completion.sequence.key)
            completion.replica = index
            self._running[completion.sequence.key] = completion
            if self._started is not None:
                self._started(completion)
            self._fleet.submit(index, completion.sequence, self.now)

    def _take(self) -> int | None:
        """A slot of the replica with the lowest share of busy ones, the first of equals."""
        heap = self._by_share
        while heap:
            share, index = heap[0]
            if index in self._closed or share != self._load[index] / self._slots[index]:
                heapq.heappop(heap)
            elif share >= 1:
                return None
            else:
                self._load[index] += 1
                heapq.heapreplace(heap, (self._load[index] / self._slots[index], index))
                return index
        return None

    def _release(self, index: int) -> None:
        self._load[index] -= 1
        if index not in self._closed:
            heapq.heappush(self._by_share, (self._load[index] / self._slots[index], index))
