"""The engine on SGLang: one adapter for SGLang 0.5.23 and later 0.5.x, over HTTP or in process."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import EngineCapabilities, PauseMode
from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineError, EngineUnavailable
from roll_rollout.http_endpoint import HttpEndpoint, RetryPolicy
from roll_rollout.refusal import refuse_unsupported
from roll_rollout.request import GenerateRequest
from roll_rollout.server_requests import ServerRequests
from roll_rollout.sglang_engine.dialect import SGLangDialect
from roll_rollout.sglang_engine.transport import HttpTransport, InProcessTransport, SGLangTransport
from roll_rollout.stop_strings import Decode
from roll_rollout.token_run import TokenRun
from roll_rollout.weight_files import directory_specs, write_adapter, write_update
from roll_rollout.weights import WeightReceipt, WeightUpdate, weights_checksum

_PAUSED, _ASLEEP, _NO_WEIGHTS = "paused", "asleep", "no weights"


class SGLangEngine:
    """An `Engine` on SGLang.

    Weights arrive through a directory that SGLang reads, in `files`: with a server on another machine, one
    that both see. Meanwhile running requests are retracted, so that what they have read is computed anew.

    Use `SGLangEngine.at` for a server and `SGLangEngine.around` for `sglang.Engine`.

    Args:
        transport: The way to SGLang.
        path: Its model directory, to check updates against.
        dtype: Of its weights.
        files: Where directories with weights are made; by default in shared memory.
        decode: Ids to text, for stop strings.
        max_context: Most tokens of prompt and completion; by default SGLang decides.
        most_running: Requests that it is given at once.
        version: Policy version of its weights.
        adapters: Whether it was started with `--enable-lora`.
        memory_saver: Whether it was started with `--enable-memory-saver`: sleep level 2 works.
        weights_backup: Whether also with `--enable-weights-cpu-backup`: sleep level 1 works too.
        deterministic: Whether with `--enable-deterministic-inference`: without, SGLang ignores seeds.
        experts_shape: Mixture layers and experts a token, if it was started with
            `--enable-return-routed-experts`.
    """

    def __init__(
        self,
        transport: SGLangTransport,
        *,
        path: str | Path,
        dtype: str = "bfloat16",
        files: str | Path | None = None,
        decode: Decode | None = None,
        max_context: int | None = None,
        most_running: int = 256,
        version: int = 0,
        adapters: bool = False,
        memory_saver: bool = False,
        weights_backup: bool = False,
        deterministic: bool = False,
        experts_shape: tuple[int, int] | None = None,
    ) -> None:
        self._transport = transport
        self._path, self._dtype = Path(path), dtype
        shared = Path("/dev/shm")
        self._parent = Path(files) if files is not None else shared if shared.is_dir() else None
        self._max_context = max_context
        self._dialect = SGLangDialect(transport, version=version, experts_shape=experts_shape)
        self._requests = ServerRequests(transport, self._dialect, decode=decode, most_running=most_running)
        levels = ((1,) if weights_backup else ()) + ((2,) if memory_saver else ())
        self._capabilities = EngineCapabilities(
            seeds=deterministic,
            refreshes_kv=True,
            stop_strings=decode is not None,
            continuation="fresh",
            streaming=True,
            pause_modes=("keep", "abort", "wait"),
            sleep_levels=levels,
            prefix_cache=True,
            adapters=adapters,
            routed_experts=experts_shape is not None,
            health=True,
        )
        self._turn = asyncio.Lock()
        self._paused = False
        self._asleep = False
        self._broken = ""

    @classmethod
    def at(
        cls,
        address: str,
        *,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        most_running: int = 256,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **options: Any,
    ) -> Self:
        """Returns an engine before SGLang's HTTP server.

        Args:
            address: Such as "http://localhost:30000".
            api_key: Sent as a bearer token.
            retry: When a request is sent again.
            most_running: Requests that are sent at once.
            sleep: Waits for a number of seconds.
            **options: As of the class.
        """
        endpoint = HttpEndpoint(
            address,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            retry=retry or RetryPolicy(),
            # Control calls get through while all requests run.
            most_connections=most_running + 8,
            sleep=sleep,
        )
        return cls(HttpTransport(endpoint), most_running=most_running, **options)

    @classmethod
    def around(cls, engine: Any, **options: Any) -> Self:
        """Returns an engine around `sglang.Engine`, which belongs to it from now on.

        Args:
            engine: Started outside the event loop, as SGLang demands.
            **options: As of the class.

        Raises:
            EngineLibraryError: SGLang is missing or of another version.
        """
        return cls(InProcessTransport(engine), **options)

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return self._capabilities

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`."""
        return await self._requests.complete(self._check(request))

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of one request in pieces. See `StreamingEngine.stream`."""
        stream = self._requests.stream(self._check(request))
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens they have. See `Engine.abort`."""
        await self._requests.abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces the weights between two tokens, through files. See `Engine.update_weights`."""
        self._requests.require_open("update_weights")
        if self._asleep:
            raise EngineError("update_weights: the engine is asleep, wake() comes first")
        label = self._dialect.next_label(update.version, self._dialect.adapters)
        async with self._turn, self._directory() as directory:
            shutil.copy(self._path / "config.json", directory)
            write_update(update, directory_specs(self._path, dtype=self._dtype), directory)
            async with self._standing_still():
                await self._reload(directory, label, update.version)
        self._requests.gate.release(_NO_WEIGHTS)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def load(self) -> EngineLoad:
        """Returns how busy SGLang is with this engine's requests."""
        return await self._requests.load()

    async def pause(self, mode: PauseMode) -> None:
        """Stands still between two tokens. See `PausableEngine.pause`."""
        self._requests.require_open("pause")
        if mode not in self._capabilities.pause_modes:
            raise EngineError(f"pause: mode is {mode!r}, allowed is one of {self._capabilities.pause_modes}")
        self._requests.gate.hold(_PAUSED)
        if mode == "abort":
            await self._requests.abort([run.request.id for run in self._requests.runs() if run.started])
        elif mode == "wait":
            await self._requests.emptied()
        async with self._turn:
            await self._transport.call("pause", {"mode": "in_place"})
            self._paused = True

    async def resume(self) -> None:
        """Goes on after a pause. See `PausableEngine.resume`."""
        if self._paused:
            async with self._turn:
                await self._transport.call("continue", {})
                self._paused = False
        self._requests.gate.release(_PAUSED)

    async def sleep(self, level: int) -> None:
        """Releases SGLang's memory. See `SleepingEngine.sleep`."""
        self._requests.require_open("sleep")
        if level not in self._capabilities.sleep_levels:
            allowed = self._capabilities.sleep_levels or "none: start SGLang with --enable-memory-saver"
            raise EngineError(f"sleep: level is {level}, allowed is {allowed}")
        self._requests.gate.hold(_ASLEEP)
        await self._requests.abort([run.request.id for run in self._requests.runs() if run.started])
        async with self._turn:
            await self._transport.call("flush", {})
            await self._transport.call("release_memory", {"tags": ["kv_cache", "weights"]})
        if level == 2:
            self._requests.gate.hold(_NO_WEIGHTS)
        self._asleep = True

    async def wake(self) -> None:
        """Takes memory back. See `SleepingEngine.wake`."""
        self._requests.require_open("wake")
        if self._asleep:
            async with self._turn:
                await self._transport.call("resume_memory", {"tags": ["kv_cache", "weights"]})
            self._asleep = False
        self._requests.gate.release(_ASLEEP)

    async def reset_prefix_cache(self) -> None:
        """Forgets computed prompts; what runs is retracted for it. See `PrefixCachingEngine`."""
        self._requests.require_open("reset_prefix_cache")
        async with self._turn, self._standing_still():
            await self._transport.call("flush", {})

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        """Takes on a LoRA adapter. See `AdapterEngine.load_adapter`.

        SGLang cannot swap weights under requests that use them: those in flight are waited for.
        """
        self._requests.require_open("load_adapter")
        if not self._capabilities.adapters:
            raise EngineError(
                "load_adapter: adapters=True is for a SGLang that was started with --enable-lora"
            )
        hold = f"adapter {update.name}"
        async with self._turn, self._directory() as directory:
            write_adapter(update, directory_specs(self._path, dtype=self._dtype), directory)
            self._requests.gate.hold(hold)
            try:
                await self._requests.emptied()
                if update.name in self._dialect.adapters:
                    await self._transport.call("unload_adapter", {"lora_name": update.name})
                    del self._dialect.adapters[update.name]
                body = {"lora_name": update.name, "lora_path": str(directory)}
                await self._transport.call("load_adapter", body)
                self._dialect.adapters[update.name] = update.version
            finally:
                self._requests.gate.release(hold)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def unload_adapter(self, name: str) -> None:
        """Forgets a LoRA adapter that no request in flight asks for. See `AdapterEngine.unload_adapter`."""
        self._requests.require_open("unload_adapter")
        if name not in self._dialect.adapters:
            loaded = sorted(self._dialect.adapters)
            raise EngineError(f"unload_adapter: {name!r} is unknown, loaded are {loaded}")
        users = [run.request.id for run in self._requests.runs() if run.request.adapter == name]
        if users:
            raise EngineError(f"unload_adapter: {name!r} is in use by {len(users)}, such as {users[0]!r}")
        del self._dialect.adapters[name]
        await self._transport.call("unload_adapter", {"lora_name": name})

    async def adapters(self) -> dict[str, int]:
        """Returns the policy version of each loaded adapter."""
        return dict(self._dialect.adapters)

    async def check_health(self) -> None:
        """Returns if SGLang answers and its weights are whole. See `CheckedEngine`."""
        self._requests.require_open("check_health")
        self._require_whole()
        await self._transport.check_health()

    async def close(self) -> None:
        """Ends all requests with `EngineClosed`; stops SGLang if it is in process. See `Engine.close`."""
        await self._requests.close()

    def _check(self, request: GenerateRequest) -> TokenRun:
        self._requests.require_new(request.id)
        self._require_whole()
        room = refuse_unsupported(
            request,
            self._capabilities,
            adapters=self._dialect.adapters,
            max_context=self._max_context,
        )
        return TokenRun(request, room, library="SGLang")

    def _require_whole(self) -> None:
        if self._broken:
            raise EngineUnavailable(self._broken)

    async def _reload(self, directory: Path, label: str, version: int) -> None:
        body = {
            "model_path": str(directory),
            "flush_cache": True,
            "abort_all_requests": False,
            "weight_version": label,
        }
        try:
            await self._transport.call("update_weights", body)
        except EngineError as error:
            self._broken = (
                f"SGLang failed in the middle of the weight update to version {version} and may hold a "
                f"mixture: {error}"
            )
            raise EngineUnavailable(self._broken) from error
        self._dialect.version = version

    @asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        """Running requests are retracted: they wait without keys and values, and are computed anew."""
        await self._transport.call("pause", {"mode": "retract"})
        try:
            yield
        finally:
            if not self._paused:
                await self._transport.call("continue", {})

    @asynccontextmanager
    async def _directory(self) -> AsyncIterator[Path]:
        directory = Path(tempfile.mkdtemp(prefix="roll-sglang-", dir=self._parent))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
