"""Continuous batching without asyncio: the queue, the running rows, and the model that advances them.

`TransformersEngine` calls it on the engine's single thread and never from two at once.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.completion import Completion
from roll_rollout.errors import EngineError
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode
from roll_rollout.transformers_engine.adapters import AdapterBank
from roll_rollout.transformers_engine.decode_step import DecodeStep
from roll_rollout.transformers_engine.kv_slots import KvSlots
from roll_rollout.transformers_engine.prefill import prefill
from roll_rollout.transformers_engine.prompts import PromptCache, PromptState, prompt_key
from roll_rollout.transformers_engine.rows import Finished, RowTable
from roll_rollout.transformers_engine.sampler import sample
from roll_rollout.transformers_engine.watcher import Watcher
from roll_rollout.versions import VersionRuns

_REFRESHED_AT_ONCE = 32
"""Rows whose keys and values exist twice for a moment, after the weights changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Work done since the start, for example one group of 8 with a prompt of 12 tokens:

        EngineStats(prefill_calls=1, prefill_tokens=12, reused_prompt_tokens=84,
                    decode_steps=40, decode_tokens=310, sampled_tokens=318, refreshed_tokens=0)

    Attributes:
        prefill_calls: Waves of admissions for which the model ran over prompts.
        prefill_tokens: Prompt tokens that went through the model.
        reused_prompt_tokens: Prompt tokens that did not, as another request had the same prompt.
        decode_steps: Forward passes with one token a row.
        decode_tokens: Rows of these passes, summed.
        sampled_tokens: Tokens drawn.
        refreshed_tokens: Tokens of running requests that went through the model once more, as its weights
            had changed.
    """

    prefill_calls: int = 0
    prefill_tokens: int = 0
    reused_prompt_tokens: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    refreshed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The end of one request: its completion, or the error that took its place."""

    request_id: str
    result: Completion | EngineError


class EngineCore:
    """The state of an engine and its one operation, `advance`.

    Args:
        model: In evaluation mode.
        adapters: Its LoRA adapters.
        windows: Sliding windows of its layers, see `KvSlots`.
        decode: Ids to text, for stop strings.
        max_batch: Most rows at once.
        max_context: Most tokens of prompt and completion; None is unlimited.
        version: Policy version of the weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        adapters: AdapterBank,
        windows: Sequence[int | None],
        decode: Decode | None,
        max_batch: int,
        max_context: int | None,
        version: int,
    ) -> None:
        self.version = version
        self.interrupt = threading.Event()
        self.watchers: dict[str, Watcher] = {}
        self._model = model
        self._adapters = adapters
        self._device = model.device
        self._max_batch = max_batch
        self._max_context = max_context
        self._pad_prompts = all(window is None for window in windows)
        self._waiting: deque[GenerateRequest] = deque()
        self._prompts = PromptCache()
        self._rows = RowTable(max_batch, decode=decode, device=self._device)
        self._slots = KvSlots(windows, max_rows=max_batch)
        self._step = DecodeStep(model)
        self._counts: Counter[str] = Counter()
        self._outcomes: list[Outcome] = []
        self._stale = False

    @property
    def running(self) -> int:
        """Requests in the batch. May be read from another thread."""
        return self._rows.size

    @property
    def stats(self) -> EngineStats:
        """Work done so far. May be read from another thread."""
        return EngineStats(**self._counts)

    @property
    def held_tokens(self) -> int:
        """Prompt and sampled tokens of the running requests. Read from another thread it is approximate."""
        return self._rows.held_tokens

    def advance(
        self, submitted: Sequence[GenerateRequest], aborted: Sequence[str], *, decode: bool = True
    ) -> list[Outcome]:
        """Takes on requests, ends aborted ones, and decodes until something ends, or `interrupt` is set.

        Args:
            submitted: New requests in the order of their arrival.
            aborted: Ids to end with the tokens they have.
            decode: Whether to draw tokens, or to leave it at that.

        Returns:
            What ended.
        """
        self._waiting.extend(submitted)
        for request in submitted:
            self._prompts.acquire(prompt_key(request))
        with torch.inference_mode():
            self._abort(set(aborted))
            while decode and not self._outcomes and (self._waiting or self._rows.size):
                if self._stale:
                    self._refresh()
                self._admit()
                self._decode()
                self._report()
                if self.interrupt.is_set():
                    break
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def weights_changed(self, version: int) -> None:
        """The model has the weights of `version` now: prompts are computed anew, and so is what rows read."""
        self.version = version
        self.drop_cache()
        self._rows.switch_version(self._version_of(self._adapters.active))
        self._stale = self._rows.size > 0

    def adapter_changed(self, name: str) -> None:
        """An adapter has other weights now. Rows that it draws go on with them."""
        self.drop_cache()
        if name == self._adapters.active:
            self._rows.switch_version(self._version_of(name))
            self._stale = self._rows.size > 0

    def drop_cache(self) -> None:
        """Forgets computed prompts."""
        self._prompts.drop_states()

    def reset(self) -> None:
        """Forgets all requests and frees their memory."""
        for request in (*self._waiting, *self._rows.requests):
            self._prompts.release(prompt_key(request))
        self._waiting.clear()
        self._rows.remove(range(self._rows.size))
        self._slots.reset()
        self._outcomes = []
        self._stale = False

    def untouched(self, request: GenerateRequest) -> Completion:
        """Returns the aborted completion of a request that never ran: that of its partial one, if any."""
        if request.partial is not None:
            return replace(request.partial, request_id=request.id)
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=np.zeros(0, dtype=np.int32),
            logprobs=np.zeros(0, dtype=np.float32),
            versions=VersionRuns(self._version_of(request.adapter)).runs(0),
            finish_reason="abort",
            seed=request.seed,
        )

    def _abort(self, ids: set[str]) -> None:
        if not ids:
            return
        for request in [each for each in self._waiting if each.id in ids]:
            self._waiting.remove(request)
            self._prompts.release(prompt_key(request))
            self._outcomes.append(Outcome(request_id=request.id, result=self.untouched(request)))
        ended = [row for row, request in enumerate(self._rows.requests) if request.id in ids]
        self._finish([Finished(row=row, length=self._rows.sampled(row), reason="abort") for row in ended])

    def _admit(self) -> None:
        """Moves waiting requests into free rows, in order, and draws their first tokens."""
        wave = self._wave()
        if not wave:
            return
        first = self._rows.size
        try:
            states = self._states(wave)
            self._slots.admit(states)
            version = self._version_of(self._adapters.active)
            self._rows.append(wave, [self._limit(request) for request in wave], version)
            self._sample(first, torch.stack([state.logits for state in states]))
        except Exception as error:  # boundary: the model; the rows that run already are untouched
            self._rows.remove(range(first, self._rows.size))
            self._slots.keep([], rows=first)
            self._fail(wave, error)

    def _wave(self) -> list[GenerateRequest]:
        """Takes the requests that fit from the queue. All rows have the same adapter at any time.

        The queue is served in order: where the adapter changes in it, the batch drains first.
        """
        wave: list[GenerateRequest] = []
        while self._waiting and self._rows.size + len(wave) < self._max_batch:
            adapter = self._waiting[0].adapter
            if adapter != self._adapters.active:
                if self._rows.size or wave:
                    break
                self._adapters.activate(adapter)
            wave.append(self._waiting.popleft())
        return wave

    def _version_of(self, adapter: str | None) -> int:
        return self.version if adapter is None else self._adapters.versions[adapter]

    def _refresh(self) -> None:
        """Computes what the rows have read anew, with the weights that the model has now."""
        self._stale = False
        contexts = [self._rows.read_ids(row) for row in range(self._rows.size)]
        self._slots.reset()
        try:
            for first in range(0, len(contexts), _REFRESHED_AT_ONCE):
                part = contexts[first : first + _REFRESHED_AT_ONCE]
                states = dict(prefill(self._model, part, pad=self._pad_prompts))
                self._slots.admit([states[index] for index in range(len(part))])
        except Exception as error:  # boundary: the model; no row can go on without what it has read
            self._fail_rows(error)
        self._counts.update(refreshed_tokens=sum(map(len, contexts)))

    def _report(self) -> None:
        """Hands new tokens to those who watch."""
        if not self.watchers:
            return
        for row, request in enumerate(self._rows.requests):
            watcher = self.watchers.get(request.id)
            if watcher is not None and self._rows.sampled(row) - watcher.held_back > watcher.sent:
                tokens, logprobs = self._rows.since(row, watcher.sent)
                ready = len(tokens) - watcher.held_back
                watcher.take(tokens[:ready], logprobs[:ready])

    def _states(self, wave: Sequence[GenerateRequest]) -> list[PromptState]:
        """Returns the state of each request's prompt; prompts without one go through the model once."""
        missing = {}
        for request in wave:
            key = prompt_key(request)
            if self._prompts.get(key) is None:
                missing[key] = request.context_ids
        keys, prompts = list(missing), list(missing.values())
        for index, state in prefill(self._model, prompts, pad=self._pad_prompts):
            self._prompts.put(keys[index], state)
        computed = sum(map(len, prompts))
        self._counts.update(
            prefill_calls=int(bool(prompts)),
            prefill_tokens=computed,
            reused_prompt_tokens=sum(len(request.context_ids) for request in wave) - computed,
        )
        states = [self._prompts.get(prompt_key(request)) for request in wave]
        return [state for state in states if state is not None]

    def _limit(self, request: GenerateRequest) -> int:
        if self._max_context is None:
            return request.sampling.max_tokens
        return min(request.sampling.max_tokens, self._max_context - len(request.prompt_ids))

    def _decode(self) -> None:
        """Runs the model on the newest token of every row and draws the next."""
        if not self._rows.size:
            return
        try:
            self._slots.begin_step()
            logits = self._step.logits(
                torch.from_numpy(self._rows.last_tokens).to(self._device),
                torch.from_numpy(self._rows.positions).to(self._device),
                self._slots,
                plain=self._adapters.active is not None,
            )
            self._slots.end_step()
            self._counts.update(decode_steps=1, decode_tokens=self._rows.size)
            self._sample(0, logits if logits.dtype == torch.float64 else logits.float())
        except Exception as error:  # boundary: the model; all rows were in the step
            self._fail_rows(error)

    def _sample(self, first: int, logits: torch.Tensor) -> None:
        tokens, logprobs = sample(logits, self._rows.uniforms(first), self._rows.plan(first))
        self._counts.update(sampled_tokens=len(tokens))
        self._finish(self._rows.record(first, tokens, logprobs))

    def _finish(self, finished: Sequence[Finished]) -> None:
        """Reports rows that are done and lets others take their places."""
        if not finished:
            return
        for each in finished:
            request = self._rows.requests[each.row]
            self._prompts.release(prompt_key(request))
            if each.reason is not None:
                completion = self._rows.completion(each.row, each.length, each.reason)
                self._outcomes.append(Outcome(request_id=request.id, result=completion))
                continue
            self._slots.wipe(each.row)
            self._prompts.drop_states()
            message = f"request {request.id!r}: logits are not finite after {each.length - 1} tokens"
            self._outcomes.append(Outcome(request_id=request.id, result=EngineError(message)))
        moves = self._rows.remove([each.row for each in finished])
        self._slots.keep(moves, rows=self._rows.size)

    def _fail_rows(self, cause: Exception) -> None:
        failed = list(self._rows.requests)
        self._rows.remove(range(self._rows.size))
        self._slots.reset()
        self._prompts.drop_states()
        self._fail(failed, cause)

    def _fail(self, requests: Sequence[GenerateRequest], cause: Exception) -> None:
        for request in requests:
            self._prompts.release(prompt_key(request))
            error = EngineError(f"request {request.id!r}: the model failed: {cause!r}")
            error.__cause__ = cause
            self._outcomes.append(Outcome(request_id=request.id, result=error))
