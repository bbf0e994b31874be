"""What engines may offer beyond `Engine`: one small protocol each, and the record that says which.

A consumer asks `capabilities_of(engine)` before it relies on one; the conformance suite checks every one
that an engine claims.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.chunk import CompletionChunk
from roll_rollout.media import MediaKind
from roll_rollout.request import GenerateRequest
from roll_rollout.weights import WeightReceipt

PauseMode = Literal["keep", "abort", "wait"]
Continuation = Literal["none", "fresh", "exact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What an engine can do, for example `EngineCapabilities(stop_strings=True, pause_modes=("abort",))`.

    Without arguments it describes an engine with the five methods of `Engine` and nothing more.

    Attributes:
        logprobs: Completions carry the log-probs of the distribution they were drawn from. Without, they
            are NaN and cannot be trained on.
        seeds: The same request gives the same tokens, whatever else runs.
        weight_updates: `update_weights` works.
        refreshes_kv: After an update, running requests go on as if the new weights had read all that
            came before; otherwise keys and values of the old weights stay.
        stop_strings: `SamplingParams.stop` is honoured.
        shared_prefill: Requests with equal prompts that arrive together compute the prompt once.
        continuation: `GenerateRequest.partial`: "exact" goes on with the random numbers that would have
            come, "fresh" with others.
        streaming: Is a `StreamingEngine`.
        pause_modes: Modes that `PausableEngine.pause` takes; none if it is not one.
        sleep_levels: Levels that `SleepingEngine.sleep` takes; none if it is not one.
        prefix_cache: Is a `PrefixCachingEngine`.
        adapters: Is an `AdapterEngine`, and honours `GenerateRequest.adapter`.
        media: Kinds of `GenerateRequest.media` that it takes.
        routed_experts: Honours `GenerateRequest.routed_experts`.
        health: Is a `CheckedEngine`.
    """

    logprobs: bool = True
    seeds: bool = True
    weight_updates: bool = True
    refreshes_kv: bool = False
    stop_strings: bool = False
    shared_prefill: bool = False
    continuation: Continuation = "none"
    streaming: bool = False
    pause_modes: tuple[PauseMode, ...] = ()
    sleep_levels: tuple[int, ...] = ()
    prefix_cache: bool = False
    adapters: bool = False
    media: tuple[MediaKind, ...] = ()
    routed_experts: bool = False
    health: bool = False


@runtime_checkable
class DescribedEngine(Protocol):
    """An engine that says what it can do."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do, as it was started."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """An engine that hands out tokens while it draws them."""

    def stream(self, request: GenerateRequest) -> AsyncIterator[CompletionChunk]:
        """Yields the completion of a request piece by piece; together they are what `generate` returns.

        Closing the iterator before its end ends the request. With stop strings the tokens that one
        might yet cut are held back.

        Raises:
            EngineError: As `Engine.generate`.
        """
        ...


@runtime_checkable
class PausableEngine(Protocol):
    """An engine that can stand still with its weights and requests in place."""

    async def pause(self, mode: PauseMode) -> None:
        """Stands still; returns when no token is drawn any more. Requests that come now wait.

        Args:
            mode: What becomes of the requests in flight: "keep" freezes them, "abort" ends them with
                the tokens they have, "wait" lets them end by themselves.
        """
        ...

    async def resume(self) -> None:
        """Goes on. Without effect unless paused."""
        ...


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that gives its memory to someone else for a while."""

    async def sleep(self, level: int) -> None:
        """Ends requests in flight as an abort does and frees memory; requests that come now wait.

        Args:
            level: 1 keeps the weights in host memory and frees everything else; 2 drops them too.
        """
        ...

    async def wake(self) -> None:
        """Takes the memory back. After level 2 requests wait until `update_weights` has brought weights."""
        ...


@runtime_checkable
class PrefixCachingEngine(Protocol):
    """An engine that keeps computed prompts for later requests."""

    async def reset_prefix_cache(self) -> None:
        """Forgets them."""
        ...


@runtime_checkable
class AdapterEngine(Protocol):
    """An engine that serves LoRA adapters on top of its weights."""

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        """Takes on an adapter, or swaps its weights between two tokens, all or nothing.

        Requests that run under the name go on with the new weights.

        Raises:
            WeightMismatch: It does not fit the model; what was loaded stays.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter.

        Raises:
            EngineError: No adapter has this name, or requests that ask for it are in flight.
        """
        ...

    async def adapters(self) -> dict[str, int]:
        """Returns the policy version of every loaded adapter by name."""
        ...


@runtime_checkable
class CheckedEngine(Protocol):
    """An engine that knows whether it is well."""

    async def check_health(self) -> None:
        """Returns if the engine could serve a request.

        Raises:
            EngineClosed: It was closed.
            EngineError: It failed for good; says how.
        """
        ...


def capabilities_of(engine: object) -> EngineCapabilities:
    """Returns what an engine says it can do; nothing beyond `Engine` if it says nothing."""
    return engine.capabilities if isinstance(engine, DescribedEngine) else EngineCapabilities()
