"""Requests in flight and the steps that advance them: asyncio around `EngineCore`.

Steps run on one thread, a few at a time. Between them whoever waits for the model has it: weight updates,
adapters, sleep. A closed gate keeps new requests out of the core; a frozen loop draws no tokens.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from roll_rollout.completion import Completion
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.request import GenerateRequest
from roll_rollout.transformers_engine.core import EngineCore, Outcome

_T = TypeVar("_T")


class StepLoop:
    """Drives a core while requests are in flight.

    Args:
        core: Belongs to the loop.
        executor: Runs the core, one call at a time.

    Attributes:
        live: Requests in flight by id, those behind the gate included.
        frozen: Whether no token is drawn. Set it under `model()`, so that no step runs still.
        closed: Whether the engine is closed.
    """

    def __init__(self, core: EngineCore, executor: Executor) -> None:
        self.live: dict[str, asyncio.Future[Completion]] = {}
        self.frozen = False
        self.closed = False
        self._core = core
        self._executor = executor
        self._adapter_of: dict[str, str | None] = {}
        self._holds: set[str] = set()
        self._held: dict[str, GenerateRequest] = {}
        self._submitted: list[GenerateRequest] = []
        self._aborted: list[str] = []
        self._pump: asyncio.Task[None] | None = None
        self._step: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._abandoned = False

    def submit(self, request: GenerateRequest) -> asyncio.Future[Completion]:
        """Takes on a request whose id is not in flight; returns what becomes of it."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.live[request.id] = future
        self._adapter_of[request.id] = request.adapter
        if self._holds:
            self._held[request.id] = request
        else:
            self._submitted.append(request)
            self.wake()
        return future

    async def completed(self, request_id: str, future: asyncio.Future[Completion]) -> Completion:
        """Returns the completion of a submitted request. Cancelling the call ends the request."""
        try:
            return await future
        except asyncio.CancelledError:
            if self.live.get(request_id) is future:
                if self._held.pop(request_id, None) is not None:
                    self._forget(request_id)
                else:
                    self._aborted.append(request_id)
                    self._core.interrupt.set()
            raise

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests after the step that runs now; returns when they have ended."""
        for request_id in request_ids:
            request = self._held.pop(request_id, None)
            if request is not None:
                self._deliver(request_id, self._core.untouched(request))
        ids = [each for each in request_ids if each in self.live]
        if not ids:
            return
        ending = [self.live[each] for each in ids]
        self._aborted.extend(ids)
        self.wake()
        await asyncio.wait(ending)

    def hold(self, reason: str) -> None:
        """Closes the gate: requests that come from now on wait behind it."""
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Takes back a hold; with the last one the gate opens and steps go on."""
        self._holds.discard(reason)
        if self._holds or self.closed:
            return
        self.frozen = False
        self._submitted.extend(self._held.values())
        self._held.clear()
        if self.live:
            self.wake()

    def admitted(self) -> list[str]:
        """Returns the ids of requests in flight that are past the gate."""
        return [each for each in self.live if each not in self._held]

    def users_of(self, adapter: str) -> list[str]:
        """Returns the ids of requests in flight that ask for an adapter."""
        return [each for each, name in self._adapter_of.items() if name == adapter]

    async def drained(self) -> None:
        """Returns when the requests that are past the gate now have ended."""
        ending = [self.live[each] for each in self.admitted()]
        if ending:
            await asyncio.wait(ending)

    async def between_steps(self, call: Callable[..., _T], *arguments: object) -> _T:
        """Interrupts the steps and returns what a call gives that has the model for itself."""
        self._core.interrupt.set()
        async with self._model():
            return await self._on_executor(call, *arguments)

    async def freeze(self) -> None:
        """Returns when no token is drawn any more."""
        self._core.interrupt.set()
        async with self._model():
            self.frozen = True

    def wake(self) -> None:
        """Interrupts the steps that run, or starts to run them."""
        self._core.interrupt.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run(), name="roll-rollout-steps")

    async def close(self) -> None:
        """Ends all requests with `EngineClosed`, waits for the step that runs, and frees the memory."""
        self.closed = True
        for request_id in list(self.live):
            self._deliver(request_id, EngineClosed(f"request {request_id!r}: the engine was closed"))
        self._held.clear()
        self._core.interrupt.set()
        async with self._model():
            await self._reset()

    async def _run(self) -> None:
        """Advances the core while requests are past the gate, and delivers what ended."""
        while len(self.live) > len(self._held) and (self._aborted or not self.frozen):
            try:
                outcomes = await self._advance()
            except asyncio.CancelledError:
                # The event loop ends, and with it all callers; the core may be in a step still.
                for kept in (self.live, self._adapter_of, self._held, self._submitted, self._aborted):
                    kept.clear()
                self._abandoned = True
                self._core.interrupt.set()
                raise
            except Exception as error:  # boundary: the executor; whatever it was, nobody may wait forever
                self._core.reset()
                message = f"the engine failed: {error!r}"
                outcomes = [Outcome(request_id=each, result=EngineError(message)) for each in self.admitted()]
            for outcome in outcomes:
                self._deliver(outcome.request_id, outcome.result)

    async def _advance(self) -> list[Outcome]:
        async with self._model():
            if self.closed:
                return []
            if self._abandoned:
                await self._reset()
            # Cleared before the lists are taken: what comes later interrupts the steps that start here.
            self._core.interrupt.clear()
            submitted, self._submitted = self._submitted, []
            aborted, self._aborted = self._aborted, []
            decode = not self.frozen
            return await self._on_executor(lambda: self._core.advance(submitted, aborted, decode=decode))

    async def _reset(self) -> None:
        self._abandoned = False
        try:
            await self._on_executor(self._core.reset)
        except RuntimeError:
            # The executor was shut down, so that no step can be running.
            self._core.reset()

    def _model(self) -> asyncio.Lock:
        """Returns the lock of whoever uses the executor. A lock serves one event loop, an engine several."""
        loop = asyncio.get_running_loop()
        if self._step is None or self._step[0] is not loop:
            self._step = (loop, asyncio.Lock())
        return self._step[1]

    async def _on_executor(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def _forget(self, request_id: str) -> asyncio.Future[Completion] | None:
        self._adapter_of.pop(request_id, None)
        return self.live.pop(request_id, None)

    def _deliver(self, request_id: str, result: Completion | EngineError) -> None:
        future = self._forget(request_id)
        if future is None or future.done():
            return
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)
