"""Continuous batching without asyncio: the queue, the running rows, and the model that advances them.

`TransformersEngine` calls it on the engine's single thread and never from two at once.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from roll_rollout.completion import Completion
from roll_rollout.errors import EngineError
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode
from roll_rollout.transformers_engine.kv_slots import KvSlots
from roll_rollout.transformers_engine.prefill import prefill
from roll_rollout.transformers_engine.prompts import PromptCache, PromptState
from roll_rollout.transformers_engine.rows import Finished, RowTable
from roll_rollout.transformers_engine.sampler import sample
from roll_rollout.versions import VersionRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Work done since the start, for example one group of 8 with a prompt of 12 tokens:

        EngineStats(prefill_calls=1, prefill_tokens=12, reused_prompt_tokens=84,
                    decode_steps=40, decode_tokens=310, sampled_tokens=318)

    Attributes:
        prefill_calls: Waves of admissions for which the model ran over prompts.
        prefill_tokens: Prompt tokens that went through the model.
        reused_prompt_tokens: Prompt tokens that did not, as another request had the same prompt.
        decode_steps: Forward passes with one token a row.
        decode_tokens: Rows of these passes, summed.
        sampled_tokens: Tokens drawn.
    """

    prefill_calls: int = 0
    prefill_tokens: int = 0
    reused_prompt_tokens: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The end of one request: its completion, or the error that took its place."""

    request_id: str
    result: Completion | EngineError


class EngineCore:
    """The state of an engine and its one operation, `advance`.

    Args:
        model: In evaluation mode.
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
        windows: Sequence[int | None],
        decode: Decode | None,
        max_batch: int,
        max_context: int | None,
        version: int,
    ) -> None:
        self.version = version
        self.interrupt = threading.Event()
        self._model = model
        self._device = model.device
        self._max_batch = max_batch
        self._max_context = max_context
        self._pad_prompts = all(window is None for window in windows)
        self._waiting: deque[GenerateRequest] = deque()
        self._prompts = PromptCache()
        self._rows = RowTable(max_batch, decode=decode, device=self._device)
        self._slots = KvSlots(windows, max_rows=max_batch)
        self._counts: Counter[str] = Counter()
        self._outcomes: list[Outcome] = []

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

    def advance(self, submitted: Sequence[GenerateRequest], aborted: Sequence[str]) -> list[Outcome]:
        """Takes on requests, ends aborted ones, and decodes until something ends, or `interrupt` is set.

        Args:
            submitted: New requests in the order of their arrival.
            aborted: Ids to end with the tokens they have.

        Returns:
            What ended.
        """
        self._waiting.extend(submitted)
        for request in submitted:
            self._prompts.acquire(request.prompt_ids)
        with torch.inference_mode():
            self._abort(set(aborted))
            while not self._outcomes and (self._waiting or self._rows.size):
                self._admit()
                self._decode()
                if self.interrupt.is_set():
                    break
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def weights_changed(self, version: int) -> None:
        """The model has the weights of `version` now: rows go on with them, prompts are computed anew."""
        self.version = version
        self._prompts.drop_states()
        self._rows.switch_version(version)

    def reset(self) -> None:
        """Forgets all requests and frees their memory."""
        for request in (*self._waiting, *self._rows.requests):
            self._prompts.release(request.prompt_ids)
        self._waiting.clear()
        self._rows.remove(range(self._rows.size))
        self._slots.reset()
        self._outcomes = []

    def _abort(self, ids: set[str]) -> None:
        if not ids:
            return
        for request in [each for each in self._waiting if each.id in ids]:
            self._waiting.remove(request)
            self._prompts.release(request.prompt_ids)
            self._outcomes.append(Outcome(request_id=request.id, result=self._untouched(request)))
        ended = [row for row, request in enumerate(self._rows.requests) if request.id in ids]
        self._finish([Finished(row=row, length=self._rows.sampled(row), reason="abort") for row in ended])

    def _admit(self) -> None:
        """Moves waiting requests into free rows, in order, and draws their first tokens."""
        free = self._max_batch - self._rows.size
        wave = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        if not wave:
            return
        first = self._rows.size
        try:
            states = self._states(wave)
            self._slots.admit(states)
            self._rows.append(wave, [self._limit(request) for request in wave], self.version)
            self._sample(first, torch.stack([state.logits for state in states]))
        except Exception as error:  # boundary: the model; the rows that run already are untouched
            self._rows.remove(range(first, self._rows.size))
            self._slots.keep([], rows=first)
            self._fail(wave, error)

    def _states(self, wave: Sequence[GenerateRequest]) -> list[PromptState]:
        """Returns the state of each request's prompt; prompts without one go through the model once."""
        missing = {}
        for request in wave:
            if self._prompts.get(request.prompt_ids) is None:
                missing[request.prompt_ids.tobytes()] = request.prompt_ids
        prompts = list(missing.values())
        for index, state in prefill(self._model, prompts, pad=self._pad_prompts):
            self._prompts.put(prompts[index], state)
        computed = sum(map(len, prompts))
        self._counts.update(
            prefill_calls=int(bool(prompts)),
            prefill_tokens=computed,
            reused_prompt_tokens=sum(len(request.prompt_ids) for request in wave) - computed,
        )
        states = [self._prompts.get(request.prompt_ids) for request in wave]
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
            mask = self._slots.begin_step()
            logits = self._model(
                input_ids=torch.from_numpy(self._rows.last_tokens).to(self._device).unsqueeze(1),
                position_ids=torch.from_numpy(self._rows.positions).to(self._device).unsqueeze(1),
                attention_mask=mask,
                past_key_values=self._slots.cache,
                use_cache=True,
            ).logits[:, -1]
            self._slots.end_step()
            self._counts.update(decode_steps=1, decode_tokens=self._rows.size)
            self._sample(0, logits if logits.dtype == torch.float64 else logits.float())
        except Exception as error:  # boundary: the model; all rows were in the step
            failed = list(self._rows.requests)
            self._rows.remove(range(self._rows.size))
            self._slots.reset()
            self._prompts.drop_states()
            self._fail(failed, error)

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
            self._prompts.release(request.prompt_ids)
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

    def _fail(self, requests: Sequence[GenerateRequest], cause: Exception) -> None:
        for request in requests:
            self._prompts.release(request.prompt_ids)
            error = EngineError(f"request {request.id!r}: the model failed: {cause!r}")
            error.__cause__ = cause
            self._outcomes.append(Outcome(request_id=request.id, result=error))

    def _untouched(self, request: GenerateRequest) -> Completion:
        """Returns the completion of a request that never ran."""
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=np.zeros(0, dtype=np.int32),
            logprobs=np.zeros(0, dtype=np.float32),
            versions=VersionRuns(self.version).runs(0),
            finish_reason="abort",
            seed=request.seed,
        )
