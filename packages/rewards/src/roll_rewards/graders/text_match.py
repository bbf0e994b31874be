"""Grader `text_match`: how much an answer in words says what the reference says."""

from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Source, Thinking, extract_answer, visible_part
from roll_rewards.reference import accepted_texts
from roll_rewards.scores import Score
from roll_rewards.text.overlap import f1, normal_answer, rouge_l, rouge_n, word_error_rate, words
from roll_rewards.threads import call_in_thread

Metric = Literal["exact", "contains", "f1", "rouge_1", "rouge_2", "rouge_l", "wer"]
_INLINE_WORDS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch:
    """A metric of overlap between answer and reference, 0..1; the best of several references counts.

    Letter case, punctuation and English articles do not matter.

    Example: `TextMatch(metric="f1", threshold=0.8)`.

    Attributes:
        metric: `exact` (equal), `contains` (the reference's words stand in the answer, in this order and
            together), `f1` (bags of words), `rouge_1`, `rouge_2`, `rouge_l`, or `wer` (1 - word error
            rate, at least 0).
        threshold: From this value on the score is 1, below it 0; None keeps the value.
        sources: Where the answer is looked for (see `extract_answer`); without any of them, and when it is
            empty, the answer is all that is visible of the response.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: The threshold is outside 0..1; when grading, the reference is not text.
    """

    metric: Metric = "exact"
    threshold: float | None = None
    sources: tuple[Source, ...] = ("box", "tag")
    thinking: Thinking = "strip"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(self.sources))
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise RewardError(
                f"option 'threshold' of grader 'text_match' must be in 0..1, got {self.threshold}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The metric, also as a part before the threshold; `parsed` is the answer. See `Grader.grade`."""
        accepted = accepted_texts(reference, grader="text_match")
        visible = visible_part(response, thinking=self.thinking)
        has_marks = any(mark in visible for mark in ("\\boxed", "\\fbox", "</answer>"))
        found = extract_answer(visible, self.sources) if self.sources else None
        if found is None and ((has_marks and self.sources) or not visible.strip()):
            return Score(value=0.0, parts={self.metric: 0.0})
        answer = visible if found is None else found.text
        if len(words(answer)) * max(len(words(text)) for text in accepted) > _INLINE_WORDS**2:
            values = await call_in_thread(
                lambda: [_overlap(self.metric, answer, text) for text in accepted], name="grader text_match"
            )
        else:
            values = [_overlap(self.metric, answer, text) for text in accepted]
        best = max(values)
        value = best if self.threshold is None else float(best >= self.threshold)
        return Score(value=value, parsed=answer.strip()[:500], parts={self.metric: best})


def _overlap(metric: Metric, answer: str, reference: str) -> float:
    if metric == "exact":
        # An answer of nothing but articles and signs equals no reference but its own text.
        one, other = normal_answer(answer), normal_answer(reference)
        return float(one == other if one and other else answer.strip() == reference.strip() != "")
    found, wanted = words(answer), words(reference)
    if metric == "contains":
        return float(bool(wanted) and f" {' '.join(wanted)} " in f" {' '.join(found)} ")
    if not wanted or not found:
        return 0.0
    if metric == "f1":
        return f1(found, wanted)
    if metric == "rouge_l":
        return rouge_l(found, wanted)
    if metric == "wer":
        return max(0.0, 1.0 - word_error_rate(found, wanted))
    return rouge_n(found, wanted, 1 if metric == "rouge_1" else 2)
