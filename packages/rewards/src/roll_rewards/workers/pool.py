"""Worker processes that make calls for a grader, and die for it when they must."""

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from roll_rewards.errors import RewardError
from roll_rewards.workers.calls import Call, SlowestCalls
from roll_rewards.workers.connection import Connection, Nest
from roll_rewards.workers.errors import CallFailed, WorkerDied, WorkerTimedOut
from roll_rewards.workers.frames import pack
from roll_rewards.workers.settings import PoolReport, WorkerLimits

_log = logging.getLogger(__name__)

_START_S = 120.0
# Calls that take less than this on average are sent ahead, so that a worker need not wait for the next.
_SHORT_S = 0.02
_AHEAD = 4
# A worker that has worked on one call for so long gives the calls sent ahead back to the others.
_PATIENCE_S = 0.25
_CRASHES_IN_A_ROW = 20


class WorkerPool:
    """Calls functions in warm worker processes; a call that hangs or crashes costs itself alone.

    Each call has a deadline in wall time that counts from the moment a worker begins it. Past it the
    worker is killed, with the processes it started, and replaced by a fork of a warm parent. Short
    calls are sent to workers a few at a time; when one of them turns out to be slow, the
    others go elsewhere.

    Functions are named `module:function` and imported in the worker, which has the caller's import
    path. Arguments are pickled. Results may be plain data, numpy arrays or `Score`s: what comes from a
    process that reads hostile text is read back without running code. Processes start at the first
    call and end with `close()`, with the pool's last reference, or with this process. One event
    loop at a time uses a pool.

    Example:

        async with WorkerPool(workers=2, preload=("sympy",)) as pool:
            result = await pool.call("my_rewards:symbolic", ("x+x", "2*x"), deadline_s=5)
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        preload: Sequence[str] = (),
        limits: WorkerLimits | None = None,
        slowest: int = 10,
    ) -> None:
        """A pool; nothing is started yet.

        Args:
            workers: Worker processes, at least 1.
            preload: Modules that are imported once, before workers are forked.
            limits: What one worker may use.
            slowest: How many of the slowest calls `report()` names, at least 0.

        Raises:
            RewardError: `workers` or `slowest` is out of its range.
        """
        if workers < 1 or slowest < 0:
            raise RewardError(
                f"a worker pool needs workers >= 1 and slowest >= 0, got workers={workers}, slowest={slowest}"
            )
        self._size = workers
        self._preload = tuple(preload)
        self._limits = limits or WorkerLimits()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nest: Nest | None = None
        self._connections: list[Connection] = []
        self._queue: deque[Call] = deque()
        self._typical_s: dict[str, float] = {}
        self._slowest = SlowestCalls(slowest)
        self._counts = dict.fromkeys(("calls", "failed", "timed_out", "died", "replaced"), 0)
        self._crashes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(
        self,
        function: str,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        deadline_s: float,
        label: str | None = None,
    ) -> object:
        """What `function(*args, **kwargs)` returns in a worker.

        Args:
            function: Import path, `module:function`.
            args: Positional arguments.
            kwargs: Arguments by name.
            deadline_s: Wall seconds from the start of the call in a worker, above 0.
            label: Names the call in the report of slow calls.

        Raises:
            WorkerTimedOut: The call ran past its deadline.
            WorkerDied: Its worker ended under it.
            CallFailed: It raised, or its arguments or result cannot be sent.
            RewardError: The deadline is not above 0, the pool cannot start, or another running event
                loop uses the pool.
        """
        if not deadline_s > 0:
            raise RewardError(f"deadline_s of a call of {function!r} must be above 0, got {deadline_s}")
        self._bind(asyncio.get_running_loop())
        call = self._packed(function, tuple(args), dict(kwargs or {}), deadline_s, label)
        self._queue.append(call)
        self._dispatch()
        try:
            return await call.future
        finally:
            # A caller that was cancelled leaves a call behind: unsent it goes, begun it is stopped.
            if not call.future.done() or call.future.cancelled():
                self._forget(call)

    def report(self) -> PoolReport:
        """Counts and the slowest calls since the pool was made."""
        return PoolReport(**self._counts, slowest=self._slowest.listed())

    async def close(self) -> None:
        """End all processes. Calls that wait fail with `WorkerDied`; the pool may be used again."""
        if self._nest is None:
            return
        calls = [*self._queue, *(call for c in self._connections for call in c.calls)]
        self._queue.clear()
        nest = self._drop()
        for call in calls:
            call.fail(WorkerDied(f"the worker pool was closed during a call of {call.function!r}"))
        if nest is not None:
            await asyncio.to_thread(nest.close)

    def _packed(
        self,
        function: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        deadline_s: float,
        label: str | None,
    ) -> Call:
        try:
            frame = pack((function, args, kwargs))
        except Exception as error:
            # Boundary to foreign code: an argument may refuse to be pickled in any way.
            raise CallFailed(
                f"the arguments of {function!r} cannot be sent: {type(error).__name__}: {error}"
            ) from error
        if len(frame) > self._limits.request_bytes:
            raise CallFailed(
                f"the arguments of {function!r} have {len(frame)} bytes, above {self._limits.request_bytes}"
            )
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        return Call(
            function=function,
            frame=frame,
            deadline_s=deadline_s,
            future=future,
            label=f"{args!r:.120}" if label is None else label,
        )

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the pool to this loop and see that its processes are there."""
        if self._loop is not None and self._loop is not loop:
            if self._loop.is_running():
                raise RewardError(
                    "a worker pool serves one event loop at a time; another running one uses it"
                )
            # The calls of a loop that ended have nobody who waits; their workers may hang.
            self._queue.clear()
            for connection in [c for c in self._connections if c.calls or not c.ready]:
                connection.kill()
                self._connections.remove(connection)
            for connection in self._connections:
                connection.attach(loop, self._on_data)
        self._loop = loop
        if self._nest is not None and not self._nest.alive():
            self._drop()
        if self._nest is None:
            self._nest = Nest(self._preload, self._limits)
        self._refill(loop)

    def _drop(self) -> Nest | None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        nest, self._nest = self._nest, None
        return nest

    def _refill(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._nest is not None and len(self._connections) < self._size:
            connection = self._nest.fork()
            connection.attach(loop, self._on_data)
            connection.watch(_START_S, functools.partial(self._on_no_start, connection))
            self._connections.append(connection)

    def _dispatch(self) -> None:
        """Give waiting calls to idle workers; short ones ahead, when every worker is busy."""
        for depth in range(1, _AHEAD + 1):
            for connection in self._connections:
                if not self._queue:
                    return
                call = self._queue[0]
                if call.future.done():
                    self._queue.popleft()
                    continue
                short = self._typical_s.get(call.function, 1.0) < _SHORT_S
                if connection.ready and len(connection.calls) < depth and (depth == 1 or short):
                    self._queue.popleft()
                    connection.send(call)
                    if len(connection.calls) == 1:
                        self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        """The first call of a worker has started."""
        call = connection.calls[0]
        call.started = time.monotonic()
        patience = min(_PATIENCE_S, call.deadline_s / 2)
        connection.watch(patience, functools.partial(self._on_slow, connection, call, patience))

    def _on_slow(self, connection: Connection, call: Call, waited: float) -> None:
        for other in reversed(list(connection.calls)[1:]):
            if not other.future.done():
                # A copy: the answer of this worker, should it still come to it, is not looked at.
                self._queue.appendleft(other)
                connection.disown(other)
        self._typical_s[call.function] = max(self._typical_s.get(call.function, 0.0), _SHORT_S)
        left = call.deadline_s - waited
        connection.watch(left, functools.partial(self._on_deadline, connection, call))
        self._dispatch()

    def _on_deadline(self, connection: Connection, call: Call) -> None:
        if not call.disowned:
            self._count(call, "timed_out", call.deadline_s)
            call.fail(
                WorkerTimedOut(
                    f"{call.function!r} gave no result within {call.deadline_s:g} s; its worker was killed"
                )
            )
        self._replace(connection)

    def _on_no_start(self, connection: Connection) -> None:
        self._fail_start(f"a worker did not start within {_START_S:g} s")

    def _on_data(self, connection: Connection) -> None:
        try:
            answers = connection.receive()
        except CallFailed as error:
            self._on_gone(connection, str(error))
            return
        for kind, value, seconds in answers:
            if kind == "ready":
                connection.ready = True
                connection.unwatch()
                continue
            if not connection.calls:
                self._on_gone(connection, "it answered without being asked")
                return
            self._settle(connection.calls.popleft(), kind, value, seconds)
            connection.unwatch()
            if connection.calls:
                self._begin(connection)
        if answers:
            self._crashes = 0
        if connection.gone:
            self._on_gone(connection, "its worker process ended")
        else:
            self._dispatch()

    def _settle(self, call: Call, kind: str, value: object, seconds: float) -> None:
        if call.disowned:
            return
        typical = self._typical_s.get(call.function, seconds)
        self._typical_s[call.function] = 0.9 * typical + 0.1 * seconds
        self._count(call, "failed" if kind != "ok" else "ok", seconds)
        if kind == "ok":
            call.succeed(value)
        else:
            call.fail(CallFailed(f"{call.function!r} failed in its worker: {value}"))

    def _on_gone(self, connection: Connection, why: str) -> None:
        if connection not in self._connections:
            return
        self._crashes += 1
        words = "" if self._nest is None else self._nest.last_words()
        if words or (self._crashes > _CRASHES_IN_A_ROW and not connection.ready):
            self._fail_start(words or f"{self._crashes} workers in a row ended at once: {why}")
        elif self._nest is not None and not self._nest.alive():
            self._renest()
        else:
            self._mourn(connection, why)
            self._replace(connection)

    def _mourn(self, connection: Connection, why: str) -> None:
        """Fail the call that a worker died under."""
        if connection.calls and not connection.calls[0].disowned:
            call = connection.calls[0]
            seconds = time.monotonic() - call.started
            self._count(call, "died", seconds)
            call.fail(WorkerDied(f"{call.function!r} lost its worker after {seconds:.2f} s: {why}"))

    def _renest(self) -> None:
        """The parent of all workers died, and they with it: start another, repeat what had not begun."""
        for connection in self._connections:
            self._mourn(connection, "the parent of the workers ended")
            self._queue.extendleft(c for c in reversed(list(connection.calls)[1:]) if not c.disowned)
            self._counts["replaced"] += 1
        self._drop()
        if self._loop is not None:
            self._bind(self._loop)

    def _replace(self, connection: Connection) -> None:
        """Kill a worker, give back the calls that it has not begun, start another in its place."""
        for call in reversed(list(connection.calls)[1:]):
            if not call.disowned:
                self._queue.appendleft(call)
        connection.kill()
        self._connections.remove(connection)
        self._counts["replaced"] += 1
        if self._loop is not None:
            self._refill(self._loop)
        self._dispatch()

    def _fail_start(self, why: str) -> None:
        """No worker can be had: every waiting call learns it, the next call tries again."""
        calls = [*self._queue, *(call for c in self._connections for call in c.calls)]
        self._queue.clear()
        nest = self._drop()
        if nest is not None:
            nest.abandon()
        self._crashes = 0
        for call in calls:
            call.fail(WorkerDied(f"a worker pool could not serve {call.function!r}: {why}"))

    def _forget(self, call: Call) -> None:
        for connection in list(self._connections):
            if connection.calls and connection.calls[0] is call:
                self._replace(connection)

    def _count(self, call: Call, outcome: str, seconds: float) -> None:
        self._counts["calls"] += 1
        if outcome != "ok":
            self._counts[outcome] += 1
        self._slowest.add(call, outcome, seconds)
        if outcome in ("timed_out", "died"):
            _log.info("%s %s after %.2f s: %s", call.function, outcome, seconds, call.label)
