"""The running requests, row by row, as numpy arrays: what was sampled, what comes next, and who is done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roll_rollout.completion import Completion, FinishReason
from roll_rollout.request import GenerateRequest
from roll_rollout.stop_strings import Decode, kept_before_stop
from roll_rollout.transformers_engine.sampler import SamplingPlan, plan_sampling
from roll_rollout.transformers_engine.uniforms import UniformStreams
from roll_rollout.versions import VersionRuns

_NO_TOKEN = -1
_FIRST_CAPACITY = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A row that is done.

    Attributes:
        row: Its number until the next `RowTable.remove`.
        length: Tokens that remain, fewer than were sampled if a stop string cut some.
        reason: Why it is done; None if its log-prob is not finite, that is, the model failed on it.
    """

    row: int
    length: int
    reason: FinishReason | None


class RowTable:
    """Rows 0 to `size` - 1 are running requests.

    Args:
        max_rows: Most rows.
        decode: Ids to text, for rows with stop strings.
        device: Where sampling parameters are needed.
    """

    def __init__(self, max_rows: int, *, decode: Decode | None, device: torch.device) -> None:
        self.size = 0
        self._decode = decode
        self._device = device
        self._uniforms = UniformStreams(max_rows)
        self._all_rows = np.arange(max_rows)
        self._requests: list[GenerateRequest] = []
        self._versions: list[VersionRuns] = []
        self._with_stop_strings: list[int] = []
        self._plan: SamplingPlan | None = None
        self._tokens = np.zeros((max_rows, _FIRST_CAPACITY), dtype=np.int32)
        self._logprobs = np.zeros((max_rows, _FIRST_CAPACITY), dtype=np.float32)
        self._stop_ids = np.full((max_rows, 1), _NO_TOKEN, dtype=np.int64)
        self._last = np.zeros(max_rows, dtype=np.int64)
        self._position = np.zeros(max_rows, dtype=np.int64)
        self._count = np.zeros(max_rows, dtype=np.int64)
        self._limit = np.zeros(max_rows, dtype=np.int64)

    @property
    def requests(self) -> Sequence[GenerateRequest]:
        """The request of every row."""
        return self._requests

    @property
    def last_tokens(self) -> np.ndarray:
        """int64[B], the newest token of every row: the next input of the model."""
        return self._last[: self.size]

    @property
    def positions(self) -> np.ndarray:
        """int64[B], where the newest token of every row stands in its sequence."""
        return self._position[: self.size]

    @property
    def held_tokens(self) -> int:
        """Prompt and sampled tokens of all rows."""
        return int(self.positions.sum()) + self.size

    def append(self, requests: Sequence[GenerateRequest], limits: Sequence[int], version: int) -> None:
        """Adds rows with the tokens of their partial completions; `limits` are the most each may have."""
        for request, limit in zip(requests, limits, strict=True):
            row, stop_ids = self.size, request.sampling.stop_token_ids
            if len(stop_ids) > self._stop_ids.shape[1]:
                self._stop_ids = _widened(self._stop_ids, len(stop_ids), _NO_TOKEN)
            self._stop_ids[row] = _NO_TOKEN
            self._stop_ids[row, : len(stop_ids)] = stop_ids
            self._position[row] = len(request.context_ids) - 1
            self._limit[row] = limit
            self._versions.append(self._resume(row, request.partial, version))
            self._uniforms.open(row, request.seed, at=int(self._count[row]))
            self._requests.append(request)
            self.size += 1
        self._rows_changed()

    def switch_version(self, version: int) -> None:
        """The tokens that follow are drawn by `version`."""
        for row, versions in enumerate(self._versions):
            versions.switch(version, at=int(self._count[row]))

    def plan(self, first: int) -> SamplingPlan:
        """Returns the sampling parameters of the rows from `first` on."""
        if first:
            return plan_sampling([each.sampling for each in self._requests[first:]], device=self._device)
        if self._plan is None:
            self._plan = plan_sampling([each.sampling for each in self._requests], device=self._device)
        return self._plan

    def uniforms(self, first: int) -> np.ndarray:
        """Returns float64[B]: the next random number of each row from `first` on."""
        rows = slice(first, self.size)
        return self._uniforms.draw(rows, self._count[rows])

    def record(self, first: int, tokens: np.ndarray, logprobs: np.ndarray) -> list[Finished]:
        """Appends one sampled token to each row from `first` on and returns the rows that are done.

        Args:
            first: The first row that got a token.
            tokens: int64[B].
            logprobs: float32[B].
        """
        rows, numbers = slice(first, self.size), self._all_rows[first : self.size]
        count = self._count[rows]
        self._reserve(int(count.max()) + 1)
        self._tokens[numbers, count] = tokens
        self._logprobs[numbers, count] = logprobs
        self._last[rows] = tokens
        self._position[rows] += 1
        count += 1
        stopped = (tokens[:, None] == self._stop_ids[rows]).any(axis=1)
        broken = ~np.isfinite(logprobs)
        done = np.flatnonzero(stopped | broken | (count >= self._limit[rows]))
        finished = {}
        for index in done.tolist():
            reason: FinishReason | None = "stop" if stopped[index] else "length"
            if broken[index]:
                reason = None
            finished[first + index] = Finished(row=first + index, length=int(count[index]), reason=reason)
        for row in self._with_stop_strings:
            if row >= first and (row not in finished or finished[row].reason == "length"):
                self._cut_at_stop_string(row, finished)
        return [finished[row] for row in sorted(finished)]

    def completion(self, row: int, length: int, reason: FinishReason) -> Completion:
        """Returns the first `length` tokens of a row as its completion."""
        request = self._requests[row]
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=self._tokens[row, :length].copy(),
            logprobs=self._logprobs[row, :length].copy(),
            versions=self._versions[row].runs(length),
            finish_reason=reason,
            seed=request.seed,
        )

    def sampled(self, row: int) -> int:
        """Returns how many tokens a row has."""
        return int(self._count[row])

    def since(self, row: int, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns copies of a row's tokens and log-probs from index `start` on."""
        span = slice(start, self._count[row])
        return self._tokens[row, span].copy(), self._logprobs[row, span].copy()

    def read_ids(self, row: int) -> np.ndarray:
        """Returns int32[P + T - 1]: all that the model has read of a row, its newest token not."""
        return np.concatenate([self._requests[row].prompt_ids, self._tokens[row, : self._count[row] - 1]])

    def remove(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Removes rows; the last rows take their places.

        Returns:
            Pairs (source row, target row) of the rows that moved.
        """
        size = self.size - len(rows)
        gone = set(rows)
        targets = sorted(row for row in gone if row < size)
        sources = [row for row in range(size, self.size) if row not in gone]
        moves = list(zip(sources, targets, strict=True))
        for source, target in moves:
            for array in self._arrays():
                array[target] = array[source]
            self._uniforms.move(source, target)
            self._requests[target] = self._requests[source]
            self._versions[target] = self._versions[source]
        del self._requests[size:], self._versions[size:]
        self.size = size
        self._rows_changed()
        return moves

    def _resume(self, row: int, partial: Completion | None, version: int) -> VersionRuns:
        """Puts the tokens of a partial completion into a row; returns the versions that drew them."""
        count = 0 if partial is None else len(partial)
        self._count[row] = count
        if partial is None or count == 0:
            return VersionRuns(version)
        self._reserve(count + 1)
        self._tokens[row, :count] = partial.token_ids
        self._logprobs[row, :count] = partial.logprobs
        return VersionRuns.after(partial.versions, version)

    def _reserve(self, columns: int) -> None:
        width = self._tokens.shape[1]
        if columns > width:
            width = max(columns, 2 * width)
            self._tokens = _widened(self._tokens, width, 0)
            self._logprobs = _widened(self._logprobs, width, 0)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (
            self._tokens,
            self._logprobs,
            self._stop_ids,
            self._last,
            self._position,
            self._count,
            self._limit,
        )

    def _rows_changed(self) -> None:
        self._plan = None
        self._with_stop_strings = [row for row, each in enumerate(self._requests) if each.sampling.stop]

    def _cut_at_stop_string(self, row: int, finished: dict[int, Finished]) -> None:
        if self._decode is None:
            return
        tokens = self._tokens[row, : self._count[row]]
        kept = kept_before_stop(tokens, self._requests[row].sampling.stop, self._decode)
        if kept is not None:
            finished[row] = Finished(row=row, length=kept, reason="stop")


def _widened(array: np.ndarray, columns: int, fill: int) -> np.ndarray:
    wider = np.full((array.shape[0], columns), fill, dtype=array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
