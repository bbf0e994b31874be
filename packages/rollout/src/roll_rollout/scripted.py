"""An engine without a model: plays back tokens that a function chooses. For tests and dry runs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from roll_rollout.capabilities import EngineCapabilities, PauseMode
from roll_rollout.chunk import CompletionChunk, last_chunk
from roll_rollout.completion import Completion, FinishReason
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.refusal import refuse_unsupported
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode, kept_before_stop, longest_cut
from roll_rollout.versions import VersionRuns
from roll_rollout.weights import TensorSpec, WeightReceipt, WeightUpdate, verify_update, weights_checksum


class ScriptedEngine:
    """An `Engine` whose completions are the tokens of `respond(request)`, one at a time.

    Each token has log-prob 0: it was certain. A script that ends by itself, or with a stop token or
    stop string of the request, finishes with "stop"; `max_tokens` cuts it with "length". A request that
    goes on from a partial completion skips as many tokens of its script.

    Args:
        respond: The tokens for a request. It may be an endless iterable.
        seconds_per_token: How long each token of a request takes; by default none, and other tasks run
            between two tokens.
        decode: Ids to text; needed for requests with stop strings.
        specs: Tensors that `update_weights` insists on; by default it takes any.
        max_context: Most tokens of prompt and completion; by default unlimited.
        version: Policy version at the start.
        sleep: Waits for a number of seconds; a test passes its own to run in virtual time.
    """

    def __init__(
        self,
        respond: Callable[[GenerateRequest], Iterable[int]],
        *,
        seconds_per_token: Callable[[GenerateRequest], float] | None = None,
        decode: Decode | None = None,
        specs: Sequence[TensorSpec] | None = None,
        max_context: int | None = None,
        version: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._respond = respond
        self._seconds_per_token = seconds_per_token
        self._decode = decode
        self._specs = specs
        self._max_context = max_context
        self._version = version
        self._sleep = sleep
        self._playing: dict[str, _Play] = {}
        self._sampled_tokens = 0
        self._closed = False
        # Open while requests are served; a pause closes the one or both.
        self._gate, self._clock = asyncio.Event(), asyncio.Event()
        self._gate.set()
        self._clock.set()

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return EngineCapabilities(
            refreshes_kv=True,
            stop_strings=self._decode is not None,
            continuation="exact",
            streaming=True,
            pause_modes=("keep", "abort", "wait"),
            health=True,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the scripted completion. See `Engine.generate`."""
        play = self._admit(request)
        async for _ in self._steps(play):
            pass
        return play.completion()

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the scripted completion token by token. See `StreamingEngine.stream`."""
        play = self._admit(request)
        held_back, sent = longest_cut(request.sampling.stop), 0
        steps = self._steps(play)
        try:
            async for _ in steps:
                ready = len(play.tokens) - held_back
                if ready > sent:
                    yield play.chunk(sent, ready)
                    sent = ready
        finally:
            await steps.aclose()
        yield last_chunk(play.completion(), start=sent)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens played so far. See `Engine.abort`."""
        plays = [self._playing[each] for each in request_ids if each in self._playing]
        for play in plays:
            play.halted.set()
        for play in plays:
            await play.ended.wait()

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Checks the update against `specs` and takes its version. See `Engine.update_weights`."""
        if self._closed:
            raise EngineClosed("update_weights: the engine is closed")
        if self._specs is not None:
            verify_update(update, self._specs)
        self._version = update.version
        for play in self._playing.values():
            play.versions.switch(update.version, at=len(play.tokens))
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def pause(self, mode: PauseMode) -> None:
        """Stands still. See `PausableEngine.pause`."""
        if mode not in self.capabilities.pause_modes:
            raise EngineError(f"pause: mode is {mode!r}, allowed is one of {self.capabilities.pause_modes}")
        self._gate.clear()
        if mode == "abort":
            await self.abort(list(self._playing))
        elif mode == "wait":
            for play in list(self._playing.values()):
                await play.ended.wait()
        self._clock.clear()

    async def resume(self) -> None:
        """Goes on. See `PausableEngine.resume`."""
        self._gate.set()
        self._clock.set()

    async def check_health(self) -> None:
        """Returns unless the engine is closed. See `CheckedEngine`."""
        if self._closed:
            raise EngineClosed("check_health: the engine is closed")

    async def load(self) -> EngineLoad:
        """Returns the number of requests that play; none ever waits."""
        held = sum(len(play.request.prompt_ids) + len(play.tokens) for play in self._playing.values())
        return EngineLoad(
            running=len(self._playing), waiting=0, kv_tokens=held, sampled_tokens=self._sampled_tokens
        )

    async def close(self) -> None:
        """Ends all requests with `EngineClosed`. See `Engine.close`."""
        self._closed = True
        plays = list(self._playing.values())
        for play in plays:
            play.closed = True
            play.halted.set()
        for play in plays:
            await play.ended.wait()

    def _admit(self, request: GenerateRequest) -> "_Play":
        where = f"request {request.id!r}"
        if self._closed:
            raise EngineClosed(f"{where}: the engine is closed")
        if request.id in self._playing:
            raise EngineError(f"{where}: its id is in flight already")
        room = refuse_unsupported(request, self.capabilities, adapters=(), max_context=self._max_context)
        play = _Play(request, room, self._version)
        self._playing[request.id] = play
        return play

    async def _steps(self, play: "_Play") -> AsyncGenerator[None, None]:
        """Plays a request, and yields after every token."""
        try:
            await self._until_open(self._gate, play)
            script = islice(self._script(play.request), len(play.tokens), play.room)
            for token in script:
                await self._pause(play)
                await self._until_open(self._clock, play)
                if play.halted.is_set():
                    play.reason = "abort"
                    break
                play.tokens.append(token)
                self._sampled_tokens += 1
                if self._stopped(play):
                    break
                yield
            else:
                play.reason = "length" if len(play.tokens) == play.room else "stop"
        finally:
            del self._playing[play.request.id]
            play.ended.set()
        if play.closed:
            raise EngineClosed(f"request {play.request.id!r}: the engine was closed")

    def _stopped(self, play: "_Play") -> bool:
        sampling = play.request.sampling
        if play.tokens[-1] in sampling.stop_token_ids:
            return True
        if sampling.stop and self._decode is not None:
            kept = kept_before_stop(play.tokens, sampling.stop, self._decode)
            if kept is not None:
                del play.tokens[kept:]
                return True
        return False

    async def _until_open(self, gate: asyncio.Event, play: "_Play") -> None:
        """Waits for a gate, or until the request is halted."""
        if not gate.is_set():
            await _first_of(gate.wait(), play.halted.wait())

    def _script(self, request: GenerateRequest) -> Iterator[int]:
        try:
            for token in self._respond(request):
                yield int(token)
        except Exception as error:  # boundary: the caller's script
            raise EngineError(f"request {request.id!r}: the script failed: {error!r}") from error

    async def _pause(self, play: "_Play") -> None:
        """Waits for the time of one token, or until the request is halted."""
        seconds = 0.0 if self._seconds_per_token is None else self._seconds_per_token(play.request)
        if seconds <= 0.0:
            await asyncio.sleep(0)
            return
        await _first_of(self._sleep(seconds), play.halted.wait())


class _Play:
    """A request that is being played."""

    __slots__ = ("closed", "ended", "halted", "reason", "request", "room", "tokens", "versions")

    def __init__(self, request: GenerateRequest, room: int, version: int) -> None:
        partial = request.partial
        self.request = request
        self.room = room
        self.tokens: list[int] = [] if partial is None else partial.token_ids.tolist()
        runs = partial.versions if partial is not None and len(partial) else ((version, 0),)
        self.versions = VersionRuns.after(runs, version)
        self.reason: FinishReason = "stop"
        self.halted = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed = False

    def completion(self) -> Completion:
        """Returns what was played."""
        return Completion(
            request_id=self.request.id,
            prompt_ids=self.request.prompt_ids,
            token_ids=np.array(self.tokens, dtype=np.int32),
            logprobs=np.zeros(len(self.tokens), dtype=np.float32),
            versions=self.versions.runs(len(self.tokens)),
            finish_reason=self.reason,
            seed=self.request.seed,
        )

    def chunk(self, start: int, end: int) -> CompletionChunk:
        """Returns some of the tokens."""
        return CompletionChunk(
            request_id=self.request.id,
            start=start,
            token_ids=np.array(self.tokens[start:end], dtype=np.int32),
            logprobs=np.zeros(end - start, dtype=np.float32),
            completion=None,
        )


async def _first_of(*waits: Awaitable[object]) -> None:
    """Returns when one of them has ended; cancels the rest."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
