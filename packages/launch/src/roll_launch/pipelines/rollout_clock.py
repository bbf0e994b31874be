"""When completions were generated and graded, and what that says of a step: how near it came to its bound."""

import asyncio
import contextlib
import heapq
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
from roll_scheduler.simulator import attribute_step

TRAIN, SYNC, STEP = "timing_s/update_actor", "timing_s/weight_sync", "timing_s/step"

Record: TypeAlias = tuple[int, str, float, float]
"""Number in order of sending, replica, when it was sent, when it ended."""


class RolloutClock:
    """Times of one step after the other.

    Engines take requests in order of arrival into as many rows as they have, so that the time at which a
    request got its row follows from when it was sent and when those before it ended.

    Args:
        rows: Of each replica's engine.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._began = 0.0
        self._rollout_ended = 0.0
        self._graded = 0.0
        self._running: dict[int, tuple[str, float]] = {}
        self._ended: list[Record] = []
        self._next = 0

    def begin_step(self) -> None:
        """The step's batch is asked for. What ran before counts from here on."""
        self._began = self._graded = asyncio.get_running_loop().time()
        self._ended.clear()

    def end_rollout(self) -> None:
        """The batch is complete."""
        self._rollout_ended = asyncio.get_running_loop().time()

    @contextlib.contextmanager
    def generating(self, replica: str) -> Iterator[None]:
        """Notes a generation that is the body."""
        loop = asyncio.get_running_loop()
        self._next += 1
        number = self._next
        self._running[number] = (replica, loop.time())
        try:
            yield
        finally:
            where, sent = self._running.pop(number)
            self._ended.append((number, where, sent, loop.time()))

    def graded(self) -> None:
        """A grading is over."""
        self._graded = asyncio.get_running_loop().time()

    def metrics(self, replicas: int, timing: Mapping[str, float]) -> dict[str, float]:
        """`scheduler/step/...`: the bound, and the seconds of the step by what they went to.

        Args:
            replicas: That generated.
            timing: Seconds of the step's phases.
        """
        until = self._rollout_ended
        records = [
            *((number, where, sent, min(ended, until)) for number, where, sent, ended in self._ended),
            *((number, where, sent, until) for number, (where, sent) in self._running.items()),
        ]
        spans = [
            (max(start, self._began), max(end, self._began))
            for start, end in _in_rows(records, self._rows)
            if start < until and end > self._began
        ]
        starts, ends = np.array(spans, dtype=np.float64).reshape(-1, 2).T
        return attribute_step(
            starts,
            ends,
            slots=self._rows * max(1, replicas),
            began=self._began,
            graded=max(self._began, min(self._graded, until)),
            train_s=timing.get(TRAIN, 0.0),
            sync_s=timing.get(SYNC, 0.0),
            step_s=timing[STEP],
        ).metrics()


def _in_rows(records: list[Record], rows: int) -> list[tuple[float, float]]:
    """From when a request was sent to when it had a row: (start, end) of each."""
    free: dict[str, list[float]] = {}
    spans: list[tuple[float, float]] = []
    for _, where, sent, ended in sorted(records):
        busy = free.setdefault(where, [])
        start = sent if len(busy) < rows else max(sent, heapq.heappop(busy))
        heapq.heappush(busy, ended)
        spans.append((min(start, ended), ended))
    return spans
