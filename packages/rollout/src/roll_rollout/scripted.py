"""An engine without a model: plays back tokens that a function chooses. For tests and dry runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from roll_rollout.completion import Completion, FinishReason
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError, PromptTooLong, SamplingError
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode, kept_before_stop
from roll_rollout.versions import VersionRuns
from roll_rollout.weights import TensorSpec, WeightReceipt, WeightUpdate, verify_update, weights_checksum


class ScriptedEngine:
    """An `Engine` whose completions are the tokens of `respond(request)`, one at a time.

    Each token has log-prob 0: it was certain. A script that ends by itself, or with a stop token or
    stop string of the request, finishes with "stop"; `max_tokens` cuts it with "length".

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

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the scripted completion. See `Engine.generate`."""
        room = self._check(request)
        play = _Play(request, room, VersionRuns(self._version))
        self._playing[request.id] = play
        try:
            reason = await self._play(play)
        finally:
            del self._playing[request.id]
            play.ended.set()
        if play.closed:
            raise EngineClosed(f"request {request.id!r}: the engine was closed")
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=np.array(play.tokens, dtype=np.int32),
            logprobs=np.zeros(len(play.tokens), dtype=np.float32),
            versions=play.versions.runs(len(play.tokens)),
            finish_reason=reason,
            seed=request.seed,
        )

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

    def _check(self, request: GenerateRequest) -> int:
        """Returns how many tokens the request may have."""
        where = f"request {request.id!r}"
        if self._closed:
            raise EngineClosed(f"{where}: the engine is closed")
        if request.id in self._playing:
            raise EngineError(f"{where}: its id is in flight already")
        if request.sampling.stop and self._decode is None:
            raise SamplingError(f"{where}: stop strings {request.sampling.stop} need an engine with `decode`")
        if self._max_context is None:
            return request.sampling.max_tokens
        room = self._max_context - len(request.prompt_ids)
        if room < 1:
            raise PromptTooLong(
                f"{where}: the prompt has {len(request.prompt_ids)} tokens, "
                f"allowed is {self._max_context - 1} in a context of {self._max_context}"
            )
        return min(room, request.sampling.max_tokens)

    async def _play(self, play: "_Play") -> FinishReason:
        sampling = play.request.sampling
        for token in islice(self._script(play.request), play.room):
            await self._pause(play)
            if play.halted.is_set():
                return "abort"
            play.tokens.append(token)
            self._sampled_tokens += 1
            if token in sampling.stop_token_ids:
                return "stop"
            if sampling.stop and self._decode is not None:
                kept = kept_before_stop(play.tokens, sampling.stop, self._decode)
                if kept is not None:
                    del play.tokens[kept:]
                    return "stop"
        return "length" if len(play.tokens) == play.room else "stop"

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
        waits = {asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(play.halted.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


class _Play:
    """A request that is being played."""

    __slots__ = ("closed", "ended", "halted", "request", "room", "tokens", "versions")

    def __init__(self, request: GenerateRequest, room: int, versions: VersionRuns) -> None:
        self.request = request
        self.room = room
        self.versions = versions
        self.tokens: list[int] = []
        self.halted = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed = False
