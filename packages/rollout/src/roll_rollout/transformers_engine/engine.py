"""The engine that runs a Hugging Face model in this process: asyncio around `EngineCore`."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from roll_rollout.completion import Completion
from roll_rollout.engine import EngineLoad
from roll_rollout.errors import EngineClosed, EngineError, PromptTooLong, SamplingError
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode
from roll_rollout.transformers_engine.attention import use_grouped_attention
from roll_rollout.transformers_engine.core import EngineCore, EngineStats, Outcome
from roll_rollout.transformers_engine.model_support import check_model, context_limit, sliding_windows
from roll_rollout.transformers_engine.model_weights import load_update, tensor_specs
from roll_rollout.weights import WeightReceipt, WeightUpdate, verify_update, weights_checksum

_T = TypeVar("_T")


class TransformersEngine:
    """An `Engine` with continuous batching on a Hugging Face causal language model.

    Waiting requests enter the batch as soon as a row is free; a finished row leaves it at once. A prompt
    that several requests share is computed once. The model runs on one thread of `executor`, a step at a
    time, so that the event loop stays free.

    Requests submitted in one turn of the event loop to an idle engine enter together, in order of
    submission. The same requests give the same tokens and log-probs, bit for bit, if all are submitted
    before the first step. Whatever the batch, a completion depends on its neighbours only through the
    rounding of the model's matrix products.

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
        self._model = model.train(False)
        self._vocabulary = model.get_input_embeddings().get_parameter("weight").shape[0]
        self._decode = None if tokenizer is None else _decoder(tokenizer)
        self._specs = tensor_specs(model)
        self._owns_executor = executor is None
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="roll-rollout")
        self._core = EngineCore(
            model,
            windows=windows,
            decode=self._decode,
            max_batch=max_batch,
            max_context=self._max_context,
            version=version,
        )
        self._live: dict[str, asyncio.Future[Completion]] = {}
        self._submitted: list[GenerateRequest] = []
        self._aborted: list[str] = []
        self._pump: asyncio.Task[None] | None = None
        self._step: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._abandoned = False
        self._closed = False

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

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`."""
        self._check(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._live[request.id] = future
        self._submitted.append(request)
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            if self._live.get(request.id) is future:
                self._aborted.append(request.id)
                self._core.interrupt.set()
            raise

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests after the step that runs now. See `Engine.abort`."""
        ids = [each for each in request_ids if each in self._live]
        if not ids:
            return
        ending = [self._live[each] for each in ids]
        self._aborted.extend(ids)
        self._wake()
        await asyncio.wait(ending)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces all weights between two steps. See `Engine.update_weights`."""
        if self._closed:
            raise EngineClosed("update_weights: the engine is closed")
        self._core.interrupt.set()
        async with self._between_steps():
            return await self._on_executor(self._load, update)

    async def load(self) -> EngineLoad:
        """Returns how busy the engine is now."""
        running = self._core.running
        waiting = max(0, len(self._live) - running)
        return EngineLoad(
            running=running,
            waiting=waiting,
            kv_tokens=self._core.held_tokens,
            sampled_tokens=self._core.stats.sampled_tokens,
        )

    def stats(self) -> EngineStats:
        """Returns the work done since the start."""
        return self._core.stats

    async def close(self) -> None:
        """Ends all requests with `EngineClosed`, waits for the step that runs, and frees the memory."""
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._live):
            self._deliver(request_id, EngineClosed(f"request {request_id!r}: the engine was closed"))
        self._core.interrupt.set()
        async with self._between_steps():
            await self._reset()
        if self._owns_executor:
            self._executor.shutdown(wait=False)

    def _check(self, request: GenerateRequest) -> None:
        where = f"request {request.id!r}"
        if self._closed:
            raise EngineClosed(f"{where}: the engine is closed")
        if request.id in self._live:
            raise EngineError(f"{where}: its id is in flight already")
        if request.sampling.stop and self._decode is None:
            raise SamplingError(f"{where}: stop strings {request.sampling.stop} need a tokenizer")
        length, context = len(request.prompt_ids), self._max_context
        if context is not None and length >= context:
            raise PromptTooLong(
                f"{where}: the prompt has {length} tokens, allowed is {context - 1} in a context of {context}"
            )
        largest = int(request.prompt_ids.max())
        if largest >= self._vocabulary:
            raise EngineError(f"{where}: prompt id {largest} is outside the vocabulary of {self._vocabulary}")

    def _wake(self) -> None:
        """Interrupts the steps that run, or starts to run them."""
        self._core.interrupt.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run(), name="roll-rollout-steps")

    async def _run(self) -> None:
        """Advances the core while requests are in flight, and delivers what ended."""
        while self._live:
            try:
                outcomes = await self._advance()
            except asyncio.CancelledError:
                # The event loop ends, and with it all callers; the core may be in a step still.
                for requests in (self._live, self._submitted, self._aborted):
                    requests.clear()
                self._abandoned = True
                self._core.interrupt.set()
                raise
            except Exception as error:  # boundary: the executor; whatever it was, nobody may wait forever
                self._core.reset()
                message = f"the engine failed: {error!r}"
                outcomes = [Outcome(request_id=each, result=EngineError(message)) for each in self._live]
            for outcome in outcomes:
                self._deliver(outcome.request_id, outcome.result)

    async def _advance(self) -> list[Outcome]:
        async with self._between_steps():
            if self._closed:
                return []
            if self._abandoned:
                await self._reset()
            # Cleared before the lists are taken: what comes later interrupts the steps that start here.
            self._core.interrupt.clear()
            submitted, self._submitted = self._submitted, []
            aborted, self._aborted = self._aborted, []
            return await self._on_executor(self._core.advance, submitted, aborted)

    async def _reset(self) -> None:
        self._abandoned = False
        try:
            await self._on_executor(self._core.reset)
        except RuntimeError:
            # The executor was shut down, so that no step can be running.
            self._core.reset()

    def _between_steps(self) -> asyncio.Lock:
        """Returns the lock of whoever uses the executor. A lock serves one event loop, an engine several."""
        loop = asyncio.get_running_loop()
        if self._step is None or self._step[0] is not loop:
            self._step = (loop, asyncio.Lock())
        return self._step[1]

    async def _on_executor(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def _load(self, update: WeightUpdate) -> WeightReceipt:
        verify_update(update, self._specs)
        load_update(self._model, update)
        self._core.weights_changed(update.version)
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    def _deliver(self, request_id: str, result: Completion | EngineError) -> None:
        future = self._live.pop(request_id, None)
        if future is None or future.done():
            return
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    def decode(token_ids: Sequence[int] | np.ndarray) -> str:
        ids = np.asarray(token_ids).tolist()
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode
