"""The engine that runs vLLM's `AsyncLLM`: one adapter for vLLM 0.32 and 0.33.

vLLM reports log-probs of the processed distribution and the weight version of every token; the adapter turns
requests into its arguments and outputs into completions. Weights arrive through a directory in shared memory
that the workers reload (`reload_weights`), or through one of vLLM's weight-transfer engines.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import EngineCapabilities, PauseMode
from roll_rollout.chunk import CompletionChunk, last_chunk
from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError, EngineUnavailable
from roll_rollout.gate import Gate
from roll_rollout.refusal import refuse_unknown_tokens, refuse_unsupported
from roll_rollout.request import GenerateRequest
from roll_rollout.vllm_engine.options import check_library, decoder, engine_arguments, offered, runs_on_cpu
from roll_rollout.vllm_engine.run import Run
from roll_rollout.vllm_engine.weights import VLLMWeights
from roll_rollout.weights import WeightReceipt, WeightUpdate, weights_checksum

_PAUSED, _ASLEEP, _NO_WEIGHTS = "paused", "asleep", "no weights"
_ABORT_AGAIN_S = 0.05
"""How often an abort is repeated until it has reached a request that was on its way into vLLM."""


class VLLMEngine:
    """An `Engine` on vLLM.

    A completion depends on its neighbours only through the rounding of vLLM's kernels. A request that goes
    on from a partial completion draws with other random numbers than an uninterrupted one.

    Use `VLLMEngine.start`; the constructor takes an `AsyncLLM` that was started with its arguments.

    Args:
        llm: vLLM's `AsyncLLM`, with `logprobs_mode="processed_logprobs"`.
        path: The model directory it was started from.
        options: What it was started with.
        version: Policy version of its weights.
        on_cpu: Whether it runs on a CPU.
    """

    def __init__(
        self, llm: Any, *, path: Path, options: Mapping[str, Any], version: int, on_cpu: bool = False
    ) -> None:
        config = llm.vllm_config.model_config
        self._llm = llm
        self._max_context = int(config.max_model_len)
        self._vocabulary = int(config.get_vocab_size())
        self._max_batch = int(llm.vllm_config.scheduler_config.max_num_seqs)
        self._decode = None if config.skip_tokenizer_init else decoder(llm.get_tokenizer())
        self._weights = VLLMWeights(
            llm,
            path=path,
            version=version,
            on_cpu=on_cpu,
            most_adapters=int(options.get("max_loras", 1)) if on_cpu else None,
        )
        self._capabilities = offered(options, stop_strings=self._decode is not None)
        self._live: dict[str, Run] = {}
        self._gate = Gate()
        self._turn = asyncio.Lock()
        self._asleep_at = 0
        self._sampled_tokens = 0
        self._prefilled_tokens = 0
        self._paused = False
        self._closed = False

    @classmethod
    async def start(
        cls,
        path: str | Path,
        *,
        dtype: str = "bfloat16",
        tokenizer: str | Path | None = None,
        max_batch: int = 256,
        max_context: int | None = None,
        version: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Starts vLLM on a Hugging Face directory; takes a minute or two.

        Args:
            path: Directory with `config.json` and safetensors.
            dtype: Of weights and activations, for example "bfloat16".
            tokenizer: Directory of the tokenizer, by default `path` if it has one. Needed for stop strings.
            max_batch: Most sequences at once.
            max_context: Most tokens of prompt and completion; by default what the model has positions for.
            version: Policy version of the weights in the directory.
            options: More of vLLM's `AsyncEngineArgs`, such as `tensor_parallel_size`, `quantization="fp8"`,
                `speculative_config`, `enable_lora`, `enable_sleep_mode` or
                `distributed_executor_backend="ray"`.

        Raises:
            EngineLibraryError: vLLM is missing or of another version.
            EngineError: An option is unknown, or vLLM did not start; says why.
        """
        check_library()
        from vllm.v1.engine.async_llm import AsyncLLM

        path, options = Path(path), dict(options or {})
        if tokenizer is None and (path / "tokenizer_config.json").exists():
            tokenizer = path
        arguments = engine_arguments(
            path,
            tokenizer=None if tokenizer is None else Path(tokenizer),
            dtype=dtype,
            max_batch=max_batch,
            max_context=max_context,
            options=options,
        )
        try:
            llm = AsyncLLM.from_engine_args(arguments)
        except Exception as error:  # boundary: vLLM's start
            raise EngineError(f"vLLM did not start on {str(path)!r}: {error}") from error
        engine = cls(llm, path=path, options=options, version=version, on_cpu=runs_on_cpu())
        await engine._weights.publish_label()
        return engine

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return self._capabilities

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`."""
        run = self._admit(request)
        async for _ in self._steps(run):
            pass
        return run.completion(self._decode)

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of one request in pieces. See `StreamingEngine.stream`."""
        run = self._admit(request)
        steps = self._steps(run)
        try:
            async for _ in steps:
                chunk = run.chunk()
                if chunk is not None:
                    yield chunk
        finally:
            await steps.aclose()
        yield last_chunk(run.completion(self._decode), start=run.sent)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens they have. See `Engine.abort`."""
        runs = [self._live[each] for each in request_ids if each in self._live]
        for run in runs:
            run.halted.set()
        while left := [run for run in runs if not run.ended.is_set()]:
            # One that is on its way into vLLM is not known there yet, and an abort passes it by.
            await self._llm.abort([run.request.id for run in left])
            ends = [asyncio.ensure_future(run.ended.wait()) for run in left]
            _, pending = await asyncio.wait(ends, timeout=_ABORT_AGAIN_S)
            for wait in pending:
                wait.cancel()

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces the weights between two tokens, through files. See `Engine.update_weights`."""
        self._require_open("update_weights")
        if self._asleep_at:
            raise EngineError("update_weights: the engine is asleep, wake() comes first")
        async with self._turn, self._weights.written(update) as directory, self._standing_still():
            await self._weights.load(update.version, directory)
        self._gate.release(_NO_WEIGHTS)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def open_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Connects the workers to a trainer through vLLM's weight-transfer engine.

        Its back-end, such as "nccl" or "ipc", is chosen at the start with the option
        `weight_transfer_config`. The trainer's side is vLLM's `TrainerWeightTransferEngine`.

        Args:
            init_info: As the back-end needs it, such as address, port, rank offset and world size.
        """
        self._require_open("open_transfer")
        await self._weights.open_transfer(init_info)

    async def transfer_weights(self, version: int, updates: Iterable[Mapping[str, Any]]) -> None:
        """Receives weights from the connected trainer, all or nothing, between two tokens.

        Args:
            version: Policy version of the weights.
            updates: What each part of the transfer brings, as the back-end needs it: names, dtype names,
                shapes, and handles where memory is shared.

        Raises:
            EngineUnavailable: A part failed: the engine holds a mixture, and serves no more.
        """
        self._require_open("transfer_weights")
        async with self._turn, self._standing_still():
            await self._weights.transfer(version, updates)
        self._gate.release(_NO_WEIGHTS)

    async def load(self) -> EngineLoad:
        """Returns how busy the engine is, by the tokens that have come from vLLM."""
        started = sum(1 for run in self._live.values() if run.drawn)
        running = min(max(started, 1), self._max_batch) if self._live else 0
        cache = self._llm.vllm_config.cache_config
        blocks = cache.num_gpu_blocks
        return EngineLoad(
            running=running,
            waiting=len(self._live) - running,
            kv_tokens=sum(run.held_tokens for run in self._live.values()),
            sampled_tokens=self._sampled_tokens,
            prefilled_tokens=self._prefilled_tokens,
            kv_capacity=None if blocks is None else int(blocks) * int(cache.block_size),
        )

    async def pause(self, mode: PauseMode) -> None:
        """Stands still between two tokens. See `PausableEngine.pause`."""
        self._require_open("pause")
        if mode not in self._capabilities.pause_modes:
            raise EngineError(f"pause: mode is {mode!r}, allowed is one of {self._capabilities.pause_modes}")
        self._gate.hold(_PAUSED)
        async with self._turn:
            await self._llm.pause_generation(mode=mode, clear_cache=False)
            self._paused = True
        if mode != "keep":
            await self._emptied()

    async def resume(self) -> None:
        """Goes on after a pause. See `PausableEngine.resume`."""
        if self._paused:
            async with self._turn:
                await self._llm.resume_generation()
                self._paused = False
        self._gate.release(_PAUSED)

    async def sleep(self, level: int) -> None:
        """Gives memory back through vLLM's sleep mode. See `SleepingEngine.sleep`."""
        self._require_open("sleep")
        if level not in self._capabilities.sleep_levels:
            allowed = self._capabilities.sleep_levels or "none: start with the option enable_sleep_mode"
            raise EngineError(f"sleep: level is {level}, allowed is {allowed}")
        self._gate.hold(_ASLEEP)
        async with self._turn:
            await self._llm.sleep(level=level, mode="abort")
        await self._emptied()
        if level == 2:
            self._gate.hold(_NO_WEIGHTS)
        self._asleep_at = level

    async def wake(self) -> None:
        """Takes memory back. See `SleepingEngine.wake`."""
        self._require_open("wake")
        if self._asleep_at:
            async with self._turn:
                await self._llm.wake_up()
            self._asleep_at = 0
        self._gate.release(_ASLEEP)

    async def reset_prefix_cache(self) -> None:
        """Forgets computed prompts; what runs is computed anew. See `PrefixCachingEngine`."""
        self._require_open("reset_prefix_cache")
        async with self._turn:
            await self._llm.reset_prefix_cache(reset_running_requests=True)

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        """Takes on a LoRA adapter, or other weights for one. See `AdapterEngine.load_adapter`."""
        self._require_open("load_adapter")
        if not self._capabilities.adapters:
            raise EngineError("load_adapter: vLLM was started without the option enable_lora")
        async with self._turn:
            directory = self._weights.write_adapter(update)
            async with self._standing_still():
                await self._weights.load_adapter(update, directory)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def unload_adapter(self, name: str) -> None:
        """Forgets a LoRA adapter that no request in flight asks for. See `AdapterEngine.unload_adapter`."""
        self._require_open("unload_adapter")
        users = [each for each, run in self._live.items() if run.request.adapter == name]
        if users:
            raise EngineError(
                f"unload_adapter: {name!r} is in use by {len(users)} requests, such as {users[0]!r}"
            )
        async with self._turn:
            await self._weights.unload_adapter(name)

    async def adapters(self) -> dict[str, int]:
        """Returns the policy version of each loaded adapter."""
        return self._weights.adapter_versions()

    async def check_health(self) -> None:
        """Returns if vLLM's processes are alive and its weights whole. See `CheckedEngine`."""
        self._require_open("check_health")
        self._weights.require_whole()
        try:
            await self._llm.check_health()
        except Exception as error:  # boundary: vLLM's processes
            raise EngineUnavailable(f"check_health: vLLM is dead: {error}") from error

    async def close(self) -> None:
        """Ends all requests with `EngineClosed` and stops vLLM's processes. See `Engine.close`."""
        if self._closed:
            await self._emptied()
            return
        self._closed = True
        for run in self._live.values():
            run.closed = True
        await self.abort(list(self._live))
        await asyncio.to_thread(self._llm.shutdown)
        self._weights.remove_files()

    def _admit(self, request: GenerateRequest) -> Run:
        where = f"request {request.id!r}"
        self._require_open(where)
        if request.id in self._live:
            raise EngineError(f"{where}: its id is in flight already")
        self._weights.require_whole()
        room = refuse_unsupported(
            request,
            self._capabilities,
            adapters=self._weights.adapter_versions(),
            max_context=self._max_context,
        )
        refuse_unknown_tokens(request, vocabulary=self._vocabulary)
        run = self._live[request.id] = Run(request, room)
        return run

    async def _steps(self, run: Run) -> AsyncGenerator[None, None]:
        """Runs a request, and yields after every output that brings tokens."""
        request, weights = run.request, self._weights
        try:
            if await self._gate.passed(run.halted):
                async for output in self._outputs(run):
                    last = output.outputs[0]
                    self._count(run, output)
                    if last.finish_reason is not None:
                        spans = weights.spans(last.weight_versions, request.adapter)
                        version = weights.version_of(request.adapter)
                        run.finish(last.finish_reason, spans, version, run.experts(last))
                    yield
            else:
                run.finish("abort", [], weights.version_of(request.adapter))
        finally:
            del self._live[request.id]
            run.ended.set()
        if run.closed:
            raise EngineClosed(f"request {request.id!r}: the engine was closed")

    async def _outputs(self, run: Run) -> AsyncIterator[Any]:
        """Yields vLLM's outputs for a request, each with the tokens since the last."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        where = f"request {run.request.id!r}"
        run.started = True
        try:
            outputs = self._llm.generate(
                run.prompt(),
                run.sampling(),
                run.request.id,
                lora_request=self._weights.lora_request(run.request.adapter),
            )
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        except EngineDeadError as error:
            raise EngineUnavailable(f"{where}: vLLM is dead: {error}") from error
        except (VLLMClientError, ValueError) as error:
            raise EngineError(f"{where}: vLLM refused it: {error}") from error

    def _count(self, run: Run, output: Any) -> None:
        before = run.drawn
        run.take(output.outputs[0])
        self._sampled_tokens += run.drawn - before
        if run.cached is None and run.drawn:
            run.cached = output.num_cached_tokens or 0
            self._prefilled_tokens += len(run.request.context_ids) - run.cached

    @asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        """No token is drawn inside; afterwards all that requests have read is computed anew."""
        if not self._paused:
            await self._llm.pause_generation(mode="keep", clear_cache=False)
        try:
            yield
            await self._llm.reset_prefix_cache(reset_running_requests=True)
        finally:
            if not self._paused:
                await self._llm.resume_generation()

    async def _emptied(self) -> None:
        """Returns when the requests that are past the gate have ended."""
        for run in list(self._live.values()):
            if run.started:
                await run.ended.wait()

    def _require_open(self, call: str) -> None:
        if self._closed:
            raise EngineClosed(f"{call}: the engine is closed")
