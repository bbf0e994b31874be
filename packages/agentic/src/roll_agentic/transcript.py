"""The tokens of one episode, exactly as the policy read and sampled them. Kept by the episode runner."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_agentic.errors import TranscriptError
from roll_agentic.segment import Segment, token_array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRow:
    """A transcript as flat arrays of N tokens.

    Example: `token_ids=[9, 1, 2, 7]`, `response_mask=[False, True, True, False]`,
    `behavior_logprobs=[0, -0.5, -0.1, 0]`, `oldest_version=3`.

    Attributes:
        token_ids: int32[N].
        response_mask: bool[N], True for sampled tokens; the first is False.
        behavior_logprobs: float32[N], 0 where the mask is False.
        oldest_version: Lowest policy version that sampled one of the tokens.
        newest_version: Highest one.
        truncated: The last turn was cut off (`length` or `abort`), so it has no end of its own.
    """

    token_ids: np.ndarray
    response_mask: np.ndarray
    behavior_logprobs: np.ndarray
    oldest_version: int
    newest_version: int
    truncated: bool


class Transcript:
    """Append-only segments: what was read or sampled once stays as it is, for ever.

    The prompt of the next turn is `token_ids` plus appended context. A prompt that was made elsewhere
    (say, by rendering messages anew) is taken over by `continue_with`, which refuses it when it does
    not start with everything so far: then the template rewrites history, and the turns before
    belong into a transcript of their own.
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments: list[Segment] = []
        self.extend(segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, in order."""
        return tuple(self._segments)

    @property
    def token_ids(self) -> np.ndarray:
        """int32[N], all tokens so far: the prompt of the next sampling."""
        return np.concatenate([np.empty(0, np.int32), *(segment.token_ids for segment in self._segments)])

    def __len__(self) -> int:
        """Tokens so far, N."""
        return sum(len(segment) for segment in self._segments)

    def append(self, segment: Segment) -> None:
        """Add what comes next.

        Raises:
            TranscriptError: A sampled segment comes first, where there is no context to train it in.
        """
        if segment.source == "sampled" and len(segment) and len(self) == 0:
            raise TranscriptError("the token at position 0 is sampled without any context before it")
        self._segments.append(segment)

    def extend(self, segments: Iterable[Segment]) -> None:
        """Add several segments in order; see `append`."""
        for segment in segments:
            self.append(segment)

    def continue_with(
        self, prompt_ids: object, *, source: Literal["template", "environment"] = "environment"
    ) -> None:
        """Take over the next prompt: what it has after the tokens so far becomes a segment.

        Args:
            prompt_ids: Token ids of the whole prompt, at least as many as there are so far.
            source: Where the new tokens come from.

        Raises:
            TranscriptError: The prompt does not start with everything so far; names the first position
                where it differs, both tokens, and the segment whose token was changed or lost.
        """
        prompt, known = token_array(prompt_ids), self.token_ids
        common = min(len(prompt), len(known))
        different = np.flatnonzero(prompt[:common] != known[:common])
        if different.size or len(prompt) < len(known):
            position = int(different[0]) if different.size else len(prompt)
            got = f"has token {prompt[position]}" if position < len(prompt) else "ends"
            raise TranscriptError(
                f"the next prompt must start with the {len(known)} tokens so far: "
                f"at position {position} it {got} where the transcript has token {known[position]}, "
                f"{self._place(position)}"
            )
        if len(prompt) > len(known):
            self.append(Segment(source=source, token_ids=prompt[len(known) :]))

    def to_training_row(self) -> TrainingRow:
        """The transcript as arrays; only sampled tokens are marked for training.

        Raises:
            TranscriptError: No token was sampled.
        """
        sampled = [segment for segment in self._segments if segment.source == "sampled"]
        versions = [version for segment in sampled for version, _ in segment.versions]
        if not versions:
            raise TranscriptError(f"nothing to train: none of the {len(self)} tokens was sampled")
        masks = [np.full(len(segment), segment.source == "sampled") for segment in self._segments]
        logprobs = [
            segment.logprobs if segment.source == "sampled" else np.zeros(len(segment), np.float32)
            for segment in self._segments
        ]
        return TrainingRow(
            token_ids=self.token_ids,
            response_mask=np.concatenate(masks),
            behavior_logprobs=np.concatenate(logprobs),
            oldest_version=min(versions),
            newest_version=max(versions),
            truncated=sampled[-1].finish_reason != "stop",
        )

    def _place(self, position: int) -> str:
        """In words, which segment a position lies in."""
        start = 0
        for index, segment in enumerate(self._segments):
            if position < start + len(segment):
                return f"which is token {position - start} of segment {index} ({segment.source})"
            start += len(segment)
        raise TranscriptError(f"position {position} is beyond the {start} tokens of the transcript")
