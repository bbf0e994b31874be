"""Runs of tokens with their provenance: what a transcript is made of. Made by policies."""

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from roll_agentic.errors import TranscriptError

Source: TypeAlias = Literal["template", "environment", "sampled"]
FinishReason: TypeAlias = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Consecutive tokens of one origin; its arrays are copies that nobody can change.

    Example: `Segment(source="sampled", token_ids=[17, 4], logprobs=[-0.1, -1.2], versions=((3, 2),))`.

    Attributes:
        source: `template` (put in by the chat template), `environment` (observations, tool output,
            the user's text) or `sampled` (by the policy: the only tokens that are trained).
        token_ids: int32[T], T >= 0.
        logprobs: float32[T] behavior log-probs of sampled tokens; float32[0] for others.
        versions: Policy versions of sampled tokens as runs (version, tokens) that add up to T; empty
            for others.
        finish_reason: Why sampling ended: `stop`, `length` (cut off) or `abort` (given up, may be
            continued); None for others.

    Raises:
        TranscriptError: A field does not fit the source, or the arrays do not fit each other.
    """

    source: Source
    token_ids: np.ndarray
    logprobs: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    versions: tuple[tuple[int, int], ...] = ()
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            allowed = ", ".join(get_args(Source))
            raise TranscriptError(f"the source of a segment is one of {allowed}; got {self.source!r}")
        object.__setattr__(self, "token_ids", token_array(self.token_ids))
        logprobs = np.array(self.logprobs, dtype=np.float32)
        logprobs.setflags(write=False)
        object.__setattr__(self, "logprobs", logprobs)
        object.__setattr__(self, "versions", tuple((int(v), int(n)) for v, n in self.versions))
        if self.source == "sampled":
            self._check_sampled()
        elif len(logprobs) or self.versions or self.finish_reason is not None:
            raise TranscriptError(
                f"only sampled segments have logprobs, versions and finish_reason, this is {self.source}"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    def head(self, tokens: int) -> "Segment":
        """The first tokens of a sampled segment that was cut at a stop sequence.

        Args:
            tokens: How many tokens to keep, 0..T; with T the segment itself is returned.

        Raises:
            TranscriptError: The segment is not sampled or has no such number of tokens.
        """
        if self.source != "sampled" or not 0 <= tokens <= len(self):
            raise TranscriptError(f"cannot keep {tokens} tokens of a {self.source} segment with {len(self)}")
        if tokens == len(self):
            return self
        runs = []
        left = tokens
        for version, count in self.versions:
            if left > 0:
                runs.append((version, min(count, left)))
            left -= count
        return replace(
            self,
            token_ids=self.token_ids[:tokens],
            logprobs=self.logprobs[:tokens],
            versions=tuple(runs),
            finish_reason="stop",
        )

    def _check_sampled(self) -> None:
        size = len(self)
        if self.logprobs.shape != (size,) or not np.all(np.isfinite(self.logprobs)):
            raise TranscriptError(
                f"a sampled segment of {size} tokens needs {size} finite logprobs, "
                f"got an array of shape {self.logprobs.shape}"
            )
        if any(count < 1 for _, count in self.versions) or sum(n for _, n in self.versions) != size:
            raise TranscriptError(
                f"versions are runs (version, tokens) that add up to {size} tokens, got {self.versions}"
            )
        if self.finish_reason not in get_args(FinishReason):
            allowed = ", ".join(get_args(FinishReason))
            raise TranscriptError(
                f"a sampled segment needs a finish_reason, one of {allowed}; got {self.finish_reason!r}"
            )


def token_array(token_ids: object) -> np.ndarray:
    """A read-only int32[T] copy of token ids.

    Args:
        token_ids: Array or sequence of T whole numbers, 0..2**31 - 1.

    Raises:
        TranscriptError: They are something else; names the position of the first that is out of range.
    """
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise TranscriptError(
            f"token ids are a sequence of whole numbers, got {ids.dtype}, shape {ids.shape}"
        )
    outside = np.flatnonzero((ids < 0) | (ids > np.iinfo(np.int32).max))
    if outside.size:
        raise TranscriptError(f"the token id at position {outside[0]} is {ids[outside[0]]}, out of range")
    copy = ids.astype(np.int32)
    copy.setflags(write=False)
    return copy
