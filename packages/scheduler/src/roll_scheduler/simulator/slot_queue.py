"""A queue in front of a fleet, without a scheduler: any free slot takes the next. Used by the peers."""

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
        self._waiting: deque[Completion] = deque()
        self._waits: set[int] = set()
        self._running: dict[int, Completion] = {}
        self.now = 0.0

    @property
    def size(self) -> int:
        """Completions that run or wait."""
        return len(self._running) + len(self._waits)

    def add(self, completions: Iterable[Completion]) -> None:
        """Queues completions behind those that wait."""
        for completion in completions:
            self._waiting.append(completion)
            self._waits.add(completion.sequence.key)
        self._fill()

    def next_at(self) -> float:
        """When the next completion may end, infinity if none runs."""
        return self._fleet.next_at()

    def wait(self, until: float = math.inf) -> list[Completion]:
        """Goes on to the next end, or to `until`, and returns what has ended; its slots are taken again."""
        self.now = max(self.now, min(self._fleet.next_at(), until))
        ended = []
        for index, sequence in self._fleet.advance(self.now):
            completion = self._running.pop(sequence.key)
            completion.replica = None
            self._load[index] -= 1
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
                self._load[completion.replica] -= 1
                completion.replica = None
        self._fill()

    def idle(self, seconds: float, *, sync: bool = False) -> None:
        """Nothing is generated for some seconds, which pass."""
        self.now = self._fleet.stall(self.now, seconds, sync=sync)

    def _fill(self) -> None:
        while self._waiting:
            shares = [load / slots for load, slots in zip(self._load, self._slots, strict=True)]
            index = min(range(len(shares)), key=shares.__getitem__)
            if self._load[index] >= self._slots[index]:
                return
            completion = self._waiting.popleft()
            if completion.sequence.key not in self._waits:
                continue
            self._waits.discard(completion.sequence.key)
            completion.replica = index
            self._load[index] += 1
            self._running[completion.sequence.key] = completion
            if self._started is not None:
                self._started(completion)
            self._fleet.submit(index, completion.sequence, self.now)
