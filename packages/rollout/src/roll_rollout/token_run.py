"""One request in another process: the tokens that came so far, and the completion they become."""

import asyncio
from collections.abc import Sequence

import numpy as np

from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import FINISH_REASONS, Completion, FinishReason
from roll_rollout.errors import EngineError
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode, kept_before_any_stop, longest_cut
from roll_rollout.versions import VersionRuns


class TokenRun:
    """A request in flight.

    Args:
        request: What was asked for.
        room: Most tokens of its completion, those of a partial one included.
        library: Who runs it, for messages.

    Attributes:
        request: What was asked for.
        room: Most tokens of its completion.
        started: Whether it was handed on.
        ended: Set when the request has left the engine.
        halted: Set when it was aborted.
        closed: Whether the engine was closed meanwhile.
        sent: Tokens that were handed out in chunks.
        finished: Whether `finish` was called.
        exact: Whether the ids are those that were sampled.
    """

    def __init__(self, request: GenerateRequest, room: int, *, library: str) -> None:
        self.request = request
        self.room = room
        self.started = False
        self.ended = asyncio.Event()
        self.halted = asyncio.Event()
        self.closed = False
        self.sent = 0
        self.finished = False
        self.exact = True
        self._library = library
        self._held_back = longest_cut(request.sampling.stop)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._reason: FinishReason = "abort"
        self._runs = VersionRuns(0)
        self._handed_out: list[int] = []
        self._experts: np.ndarray | None = None
        self.rewind()

    @property
    def before(self) -> int:
        """Tokens of the partial completion that it goes on from."""
        return len(self.request.context_ids) - len(self.request.prompt_ids)

    @property
    def drawn(self) -> int:
        """Tokens that were drawn for it."""
        return len(self._tokens) - self.before

    @property
    def held_tokens(self) -> int:
        """Tokens of prompt and completion; 0 before the first one is drawn."""
        return len(self.request.prompt_ids) + len(self._tokens) if self.drawn else 0

    def rewind(self) -> None:
        """Forgets what was drawn: it is drawn once more. What was handed out must come again."""
        partial = self.request.partial
        self._tokens = [] if partial is None else partial.token_ids.tolist()
        self._logprobs = [] if partial is None else partial.logprobs.tolist()

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Appends tokens.

        Raises:
            EngineError: There are not as many log-probs, or others were handed out before a `rewind`.
        """
        if len(token_ids) != len(logprobs):
            got = f"{len(token_ids)} tokens and {len(logprobs)} log-probs"
            raise EngineError(f"request {self.request.id!r}: {self._library} gave {got}")
        start = len(self._tokens)
        self._tokens.extend(token_ids)
        self._logprobs.extend(logprobs)
        promised = self._handed_out[start : len(self._tokens)]
        if promised != self._tokens[start : start + len(promised)]:
            where = f"request {self.request.id!r}"
            raise EngineError(
                f"{where}: {self._library} drew other tokens than before, in the middle of a stream"
            )

    def chunk(self) -> CompletionChunk | None:
        """Returns the tokens that no stop string can cut and that were not handed out; None without any."""
        ready = len(self._tokens) - self._held_back
        if ready <= self.sent:
            return None
        start, self.sent = self.sent, ready
        self._handed_out.extend(self._tokens[start:ready])
        return CompletionChunk(
            request_id=self.request.id,
            start=start,
            token_ids=np.array(self._tokens[start:ready], dtype=np.int32),
            logprobs=np.array(self._logprobs[start:ready], dtype=np.float32),
            completion=None,
        )

    def finish(
        self,
        reason: str | None,
        spans: Sequence[tuple[int, int]],
        version: int,
        experts: np.ndarray | None = None,
    ) -> None:
        """Notes how the request ended.

        Args:
            reason: Why.
            spans: Versions of the tokens that were drawn, with the index of the first token of each.
            version: That would have drawn the first token, if there is none.
            experts: Routed experts.

        Raises:
            EngineError: The reason is none of `FINISH_REASONS`.
        """
        if reason not in FINISH_REASONS:
            where, allowed = f"request {self.request.id!r}", list(FINISH_REASONS)
            raise EngineError(f"{where}: {self._library} ended it with {reason!r}, allowed is {allowed}")
        self._reason = reason
        self.finished = True
        self._experts = experts if self.request.routed_experts else None
        partial = self.request.partial
        if partial is not None and len(partial):
            self._runs = VersionRuns.after(partial.versions, partial.newest_version)
        else:
            self._runs = VersionRuns(spans[0][0] if spans else version)
        for each, start in spans:
            self._runs.switch(each, at=self.before + start)

    def completion(self, decode: Decode | None) -> Completion:
        """Returns the completion, cut at a stop string if it holds one. Comes after `finish`.

        Args:
            decode: Ids to text, for stop strings.
        """
        finish, length = self._reason, len(self._tokens)
        if self.request.sampling.stop and decode is not None and finish != "abort":
            kept = kept_before_any_stop(self._tokens, self.request.sampling.stop, decode)
            if kept is not None:
                length, finish = kept, "stop"
        return Completion(
            request_id=self.request.id,
            prompt_ids=self.request.prompt_ids,
            token_ids=np.array(self._tokens[:length], dtype=np.int32),
            logprobs=np.array(self._logprobs[:length], dtype=np.float32),
            versions=self._runs.runs(length),
            finish_reason=finish,
            seed=self.request.seed,
            exact=self.exact,
            routed_experts=None if self._experts is None else self._experts.astype(np.int16),
        )


def continued_seed(seed: int, start: int) -> int:
    """Returns the seed of a request that goes on after `start` tokens: another one, but always the same."""
    if start == 0:
        return seed
    return int(np.random.SeedSequence([seed, start]).generate_state(1, np.uint64)[0])
