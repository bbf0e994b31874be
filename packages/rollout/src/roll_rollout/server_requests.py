"""Requests on their way through a server: in flight, aborted, streamed, closed. Shared by the HTTP engines.

What a server is asked and how its events are read is the engine's own: `ServerDialect`.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

from roll_rollout.chunk import CompletionChunk, last_chunk
from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.gate import Gate
from roll_rollout.stop_strings import Decode
from roll_rollout.token_run import TokenRun

logger = logging.getLogger(__name__)

_ABORT_S = 10.0
"""Seconds that a server has to end a request which it was told to abort."""
_ABORT_AGAIN_S = 0.05
"""Seconds until it is told once more; they double."""


class ServerDialect(Protocol):
    """How one kind of server is spoken to.

    Attributes:
        path: Where completions are asked for.
        version: Policy version that the server's weights have.
    """

    path: str
    version: int

    def attempt(self, run: TokenRun) -> AsyncIterator[None]:
        """Sends a request once; yields when tokens have come into `run`, and finishes it.

        Raises:
            Unanswered: It is worth another attempt.
            EngineError: It is not.
        """
        ...

    async def abort(self, run: TokenRun) -> bool:
        """Tells the server that nobody waits for a request; returns whether it will end the stream."""
        ...


class Carrier(Protocol):
    """What carries requests to a server: `HttpEndpoint`, or a stand-in for a server in this process."""

    async def retried(
        self, attempt: Callable[[], Awaitable[Any]], *, path: str, where: str, jitter: random.Random
    ) -> Any:
        """Returns what an attempt returns, the first that is answered."""
        ...

    async def close(self) -> None:
        """Lets go of the server."""
        ...


class ServerRequests:
    """The requests of an engine that stands before a server.

    Args:
        carrier: Carries requests to the server.
        dialect: How it is spoken to.
        decode: Ids to text, for stop strings.
        most_running: Requests that the server is given at once.

    Attributes:
        gate: Held closed while the engine stands still.
        closed: Whether the engine is closed.
    """

    def __init__(
        self,
        carrier: Carrier,
        dialect: ServerDialect,
        *,
        decode: Decode | None,
        most_running: int,
    ) -> None:
        self.gate = Gate()
        self.closed = False
        self._carrier = carrier
        self._dialect = dialect
        self._decode = decode
        self._slots = asyncio.Semaphore(most_running)
        self._live: dict[str, TokenRun] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._sampled_tokens = 0

    def require_new(self, request_id: str) -> None:
        """Returns if a request with this id can be taken on.

        Raises:
            EngineClosed: The engine is closed.
            EngineError: The id is in flight.
        """
        self.require_open(f"request {request_id!r}")
        if request_id in self._live:
            raise EngineError(f"request {request_id!r}: its id is in flight already")

    def require_open(self, call: str) -> None:
        """Returns unless the engine is closed.

        Raises:
            EngineClosed: It is.
        """
        if self.closed:
            raise EngineClosed(f"{call}: the engine is closed")

    def runs(self) -> list[TokenRun]:
        """Returns the requests in flight."""
        return list(self._live.values())

    async def complete(self, run: TokenRun) -> Completion:
        """Returns the completion of a request that was checked."""
        self._live[run.request.id] = run
        async for _ in self._steps(run):
            pass
        return run.completion(self._decode)

    async def stream(self, run: TokenRun) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of a request that was checked in pieces.

        A request that had to be sent again starts anew in silence: what was handed out stays if the server
        draws it again, and is an error if it does not.
        """
        self._live[run.request.id] = run
        async with aclosing(self._steps(run)) as steps:
            async for _ in steps:
                chunk = run.chunk()
                if chunk is not None:
                    yield chunk
        yield last_chunk(run.completion(self._decode), start=run.sent)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens they have."""
        runs = [self._live[each] for each in request_ids if each in self._live]
        for run in runs:
            run.halted.set()
        await asyncio.gather(*[self._halt(run) for run in runs])

    async def emptied(self) -> None:
        """Returns when the requests that are past the gate have ended."""
        for run in self.runs():
            if run.started:
                await run.ended.wait()

    async def load(self) -> EngineLoad:
        """Returns how busy the server is with this engine's requests."""
        running = len(self._sending)
        return EngineLoad(
            running=running,
            waiting=len(self._live) - running,
            kv_tokens=sum(run.held_tokens for run in self._live.values()),
            sampled_tokens=self._sampled_tokens,
        )

    async def close(self) -> None:
        """Ends all requests with `EngineClosed` and closes the connections."""
        self.closed = True
        for run in self.runs():
            run.closed = True
        await self.abort(list(self._live))
        await self._carrier.close()

    async def _halt(self, run: TokenRun) -> None:
        waited, pause = 0.0, _ABORT_AGAIN_S
        while run.started and waited < _ABORT_S and await self._dialect.abort(run):
            # One that is on its way to the server is not known there yet, and an abort passes it by.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await run.ended.wait()
                return
            waited, pause = waited + pause, 2 * pause
        sending = self._sending.get(run.request.id)
        if sending is not None:
            sending.cancel()
        await run.ended.wait()

    async def _steps(self, run: TokenRun) -> AsyncGenerator[None, None]:
        """Runs a request, and yields after every event that brings tokens."""
        request_id = run.request.id
        try:
            if await self.gate.passed(run.halted):
                async with self._slots:
                    async for _ in self._sent(run):
                        yield
            if run.halted.is_set() and not run.finished:
                run.finish("abort", [(self._dialect.version, 0)], self._dialect.version)
        finally:
            del self._live[request_id]
            run.ended.set()
        if run.closed:
            raise EngineClosed(f"request {request_id!r}: the engine was closed")

    async def _sent(self, run: TokenRun) -> AsyncGenerator[None, None]:
        """Sends a request, again where that may help, from a task that an abort can cancel."""
        if run.halted.is_set():
            return
        events: asyncio.Queue[BaseException | None] = asyncio.Queue()
        request_id, seed = run.request.id, run.request.seed

        async def attempt() -> None:
            run.rewind()
            async for _ in self._dialect.attempt(run):
                events.put_nowait(None)

        async def send() -> None:
            await self._carrier.retried(
                attempt, path=self._dialect.path, where=f"request {request_id!r}", jitter=random.Random(seed)
            )

        run.started = True
        task = asyncio.get_running_loop().create_task(send(), name=f"server request {request_id}")
        self._sending[request_id] = task
        task.add_done_callback(lambda done: events.put_nowait(_end(done)))
        drawn, finished = 0, False
        try:
            while (event := await events.get()) is None:
                self._sampled_tokens += max(0, run.drawn - drawn)
                drawn = max(drawn, run.drawn)
                yield
            finished = isinstance(event, _Finished)
            if not finished and not run.halted.is_set():
                raise event
        finally:
            del self._sending[request_id]
            if not task.done():
                task.cancel()
            if not finished:
                await asyncio.gather(task, return_exceptions=True)
                await self._forsake(run)

    async def _forsake(self, run: TokenRun) -> None:
        """Lets the server know that a request is not waited for; whatever comes of that."""
        try:
            async with asyncio.timeout(_ABORT_S):
                await self._dialect.abort(run)
        except (EngineError, TimeoutError) as error:
            logger.warning("request %r: the server could not be told of its end: %s", run.request.id, error)


class _Finished(Exception):
    """The task that sent a request is done."""


def _end(task: asyncio.Task[None]) -> BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or _Finished()
