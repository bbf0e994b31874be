"""The engine that runs a Hugging Face model in this process."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import EngineCapabilities, PauseMode
from roll_rollout.chunk import CompletionChunk, last_chunk
from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.refusal import refuse_unknown_tokens, refuse_unsupported
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode
from roll_rollout.transformers_engine.adapters import AdapterBank
from roll_rollout.transformers_engine.attention import use_grouped_attention
from roll_rollout.transformers_engine.core import EngineCore, EngineStats
from roll_rollout.transformers_engine.model_support import check_model, context_limit, sliding_windows
from roll_rollout.transformers_engine.model_weights import ModelWeights
from roll_rollout.transformers_engine.step_loop import StepLoop
from roll_rollout.transformers_engine.watcher import Watcher
from roll_rollout.weights import WeightReceipt, WeightUpdate, weights_checksum

_PAUSED, _ASLEEP, _NO_WEIGHTS = "paused", "asleep", "no weights"
_SLEEP_LEVELS = (1, 2)


class TransformersEngine:
    """An `Engine` with continuous batching on a Hugging Face causal language model.

    Waiting requests enter the batch as soon as a row is free; a finished row leaves it at once. A prompt
    that several requests share is computed once. The model runs on one thread of `executor`, a step at a
    time, so that the event loop stays free.

    Requests submitted in one turn of the event loop to an idle engine enter together, in order of
    submission. The same requests give the same tokens and log-probs, bit for bit, if all are submitted
    before the first step. Whatever the batch, a completion depends on its neighbours only through the
    rounding of the model's matrix products.

    After a weight update the keys and values of running requests are computed anew, so that each token is
    drawn by the weights of its version alone. All rows of the batch have the same LoRA adapter: where it
    changes in the queue, the batch drains first.

    End tokens come from the request alone: the model's generation config is not consulted. A completion
    also ends, with "length", when prompt and completion fill `max_context`.

    Args:
        model: Belongs to the engine until it is closed. It is put into evaluation mode, and its attention
            from "sdpa" to a registered variant that differs for single tokens only, where it is quicker.
        tokenizer: Needed for requests with stop strings only.
        max_batch: Most requests that run at once, at least 1.
        max_context: Most tokens of prompt and completion; by default what the model has positions for.
        version: Policy version of the model's weights.
        executor: Runs the model, one call at a time; by default a thread of the engine's own.

    Raises:
        EngineError: The model is of a kind that this engine cannot run, or a limit is out of range.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_batch: int = 64,
        max_context: int | None = None,
        version: int = 0,
        executor: Executor | None = None,
    ) -> None:
        if max_batch < 1:
            raise EngineError(f"max_batch is {max_batch}, allowed is 1 or more")
        check_model(model)
        self._max_context = context_limit(model, max_context)
        windows = sliding_windows(model, max_context=self._max_context)
        use_grouped_attention(model)
        model.train(False)
        self._vocabulary = model.get_input_embeddings().get_parameter("weight").shape[0]
        self._weights = ModelWeights(model)
        self._adapters = AdapterBank(model)
        self._owns_executor = executor is None
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="roll-rollout")
        self._core = EngineCore(
            model,
            adapters=self._adapters,
            windows=windows,
            decode=None if tokenizer is None else _decoder(tokenizer),
            max_batch=max_batch,
            max_context=self._max_context,
            version=version,
        )
        self._loop = StepLoop(self._core, self._executor)
        self._capabilities = _capabilities(stop_strings=tokenizer is not None)
        self._asleep_at = 0

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_batch: int = 64,
        max_context: int | None = None,
        version: int = 0,
        executor: Executor | None = None,
    ) -> Self:
        """Returns an engine for a Hugging Face directory, with its tokenizer if it has one.

        Args:
            path: Directory with `config.json` and safetensors.
            dtype: "float32" or "bfloat16"; what the weights are converted to.
            device: Torch device, such as "cpu" or "cuda:0".
            tokenizer: Used instead of the directory's.
            max_batch: Most requests that run at once.
            max_context: Most tokens of prompt and completion.
            version: Policy version of the weights in the directory.
            executor: Runs the model, one call at a time.

        Raises:
            EngineError: As for the class.
        """
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        model.to(device)  # type: ignore[arg-type] # its decorator hides the signature
        if tokenizer is None and (Path(path) / "tokenizer_config.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(path)
        return cls(
            model,
            tokenizer=tokenizer,
            max_batch=max_batch,
            max_context=max_context,
            version=version,
            executor=executor,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return self._capabilities

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`."""
        self._check(request)
        return await self._loop.completed(request.id, self._loop.submit(request))

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of one request in pieces. See `StreamingEngine.stream`."""
        self._check(request)
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[CompletionChunk | None] = asyncio.Queue()

        def hand_over(chunk: CompletionChunk) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        self._core.watchers[request.id] = Watcher(request, hand_over)
        future = self._loop.submit(request)
        task = loop.create_task(self._loop.completed(request.id, future), name=f"stream of {request.id}")
        task.add_done_callback(lambda _: chunks.put_nowait(None))
        sent = 0
        try:
            while (chunk := await chunks.get()) is not None:
                sent = chunk.start + len(chunk.token_ids)
                yield chunk
            yield last_chunk(await task, start=sent)
        finally:
            self._core.watchers.pop(request.id, None)
            task.cancel()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests after the step that runs now. See `Engine.abort`."""
        await self._loop.abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces all weights between two steps. See `Engine.update_weights`."""
        self._require_open("update_weights")
        if self._asleep_at:
            raise EngineError("update_weights: the engine is asleep, wake() comes first")
        receipt = await self._loop.between_steps(self._load, update)
        self._loop.release(_NO_WEIGHTS)
        return receipt

    async def load(self) -> EngineLoad:
        """Returns how busy the engine is now."""
        running, stats = self._core.running, self._core.stats
        return EngineLoad(
            running=running,
            waiting=max(0, len(self._loop.live) - running),
            kv_tokens=self._core.held_tokens,
            sampled_tokens=stats.sampled_tokens,
            prefilled_tokens=stats.prefill_tokens,
        )

    def stats(self) -> EngineStats:
        """Returns the work done since the start."""
        return self._core.stats

    async def pause(self, mode: PauseMode) -> None:
        """Stands still between two steps. See `PausableEngine.pause`."""
        self._require_open("pause")
        if mode not in self._capabilities.pause_modes:
            raise EngineError(f"pause: mode is {mode!r}, allowed is one of {self._capabilities.pause_modes}")
        self._loop.hold(_PAUSED)
        if mode == "abort":
            await self._loop.abort(self._loop.admitted())
        elif mode == "wait":
            await self._loop.drained()
        await self._loop.freeze()

    async def resume(self) -> None:
        """Goes on after a pause. See `PausableEngine.resume`."""
        self._loop.release(_PAUSED)

    async def sleep(self, level: int) -> None:
        """Frees keys and values, and moves or drops the weights. See `SleepingEngine.sleep`."""
        self._require_open("sleep")
        if level not in _SLEEP_LEVELS:
            raise EngineError(f"sleep: level is {level}, allowed is one of {_SLEEP_LEVELS}")
        self._loop.hold(_ASLEEP)
        await self._loop.abort(self._loop.admitted())
        await self._loop.freeze()
        await self._loop.between_steps(self._core.reset)
        if level == 2:
            self._loop.hold(_NO_WEIGHTS)
            await self._loop.between_steps(self._weights.drop)
        elif not self._asleep_at:
            await self._loop.between_steps(self._weights.offload)
        self._asleep_at = max(level, self._asleep_at)

    async def wake(self) -> None:
        """Takes memory back. See `SleepingEngine.wake`."""
        self._require_open("wake")
        if self._asleep_at:
            await self._loop.between_steps(self._weights.restore)
            self._asleep_at = 0
        self._loop.release(_ASLEEP)

    async def reset_prefix_cache(self) -> None:
        """Forgets the prompts of requests in flight. See `PrefixCachingEngine`."""
        await self._loop.between_steps(self._core.drop_cache)

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        """Takes on a LoRA adapter, or other weights for one. See `AdapterEngine.load_adapter`."""
        self._require_open("load_adapter")
        await self._loop.between_steps(self._load_adapter, update)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def unload_adapter(self, name: str) -> None:
        """Forgets a LoRA adapter that no request in flight asks for. See `AdapterEngine.unload_adapter`."""
        self._require_open("unload_adapter")
        if name not in self._adapters.versions:
            loaded = sorted(self._adapters.versions)
            raise EngineError(f"unload_adapter: {name!r} is unknown, loaded are {loaded}")
        users = self._loop.users_of(name)
        if users:
            raise EngineError(
                f"unload_adapter: {name!r} is in use by {len(users)} requests, such as {users[0]!r}"
            )
        # Refused from now on, before the layers go.
        del self._adapters.versions[name]
        await self._loop.between_steps(self._adapters.unload, name)

    async def adapters(self) -> dict[str, int]:
        """Returns the policy version of each loaded adapter."""
        return dict(self._adapters.versions)

    async def check_health(self) -> None:
        """Returns if the engine is open and its thread answers. See `CheckedEngine`."""
        self._require_open("check_health")
        try:
            await self._loop.between_steps(lambda: None)
        except RuntimeError as error:
            raise EngineError(f"check_health: the executor takes no work: {error}") from error

    async def close(self) -> None:
        """Ends all requests with `EngineClosed`, waits for the step that runs, and frees the memory."""
        if self._loop.closed:
            return
        await self._loop.close()
        if self._owns_executor:
            self._executor.shutdown(wait=False)

    def _check(self, request: GenerateRequest) -> None:
        where = f"request {request.id!r}"
        if self._loop.closed:
            raise EngineClosed(f"{where}: the engine is closed")
        if request.id in self._loop.live:
            raise EngineError(f"{where}: its id is in flight already")
        refuse_unsupported(
            request, self._capabilities, adapters=self._adapters.versions, max_context=self._max_context
        )
        refuse_unknown_tokens(request, vocabulary=self._vocabulary)

    def _require_open(self, call: str) -> None:
        if self._loop.closed:
            raise EngineClosed(f"{call}: the engine is closed")

    def _load(self, update: WeightUpdate) -> WeightReceipt:
        checksum = self._weights.load(update)
        self._core.weights_changed(update.version)
        return WeightReceipt(version=update.version, checksum=checksum)

    def _load_adapter(self, update: AdapterUpdate) -> None:
        self._adapters.load(update)
        self._core.adapter_changed(update.name)


def _capabilities(*, stop_strings: bool) -> EngineCapabilities:
    return EngineCapabilities(
        stop_strings=stop_strings,
        refreshes_kv=True,
        shared_prefill=True,
        continuation="exact",
        streaming=True,
        pause_modes=("keep", "abort", "wait"),
        sleep_levels=_SLEEP_LEVELS,
        prefix_cache=True,
        adapters=True,
        health=True,
    )


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    def decode(token_ids: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(token_ids).tolist()
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode
