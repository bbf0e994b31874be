"""Grader `video_question`: questions about pictures and videos, each type by its own measure."""

import re
from dataclasses import dataclass, replace

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, extract_answer, visible_part
from roll_rewards.graders.choice import Choice
from roll_rewards.graders.text_match import TextMatch
from roll_rewards.numerals import last_number
from roll_rewards.scores import Score, failed

_TYPES = {
    "multiple choice": "choice", "multiplechoice": "choice", "choice": "choice", "mcq": "choice",
    "numerical": "numerical", "number": "numerical", "counting": "numerical",
    "ocr": "ocr", "free form": "free-form", "freeform": "free-form", "open ended": "free-form",
    "regression": "regression",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoQuestion:
    """The measure of the question's type, 0..1.

    `choice` compares the letter, `numerical` the number to two decimals, `ocr` is one minus the word error
    rate, `free-form` the mean of ROUGE-1, -2 and -L, `regression` one minus the relative error.

    The answer stands in `<answer>` tags or in a box. The value is a part by the type's name as well.

    Example: with the row `{"problem_type": "OCR", "reference": "EXIT"}` the response
    `<answer>EXIT</answer>` scores 1.

    Attributes:
        by: Column that names the type, in any case, with or without spaces and hyphens.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: When grading, the type is unknown.

    Source: Video-R1 (arXiv 2503.21776).
    """

    by: str = "problem_type"
    thinking: Thinking = "strip"

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The measure; `parsed` is the answer. See `Grader.grade`."""
        name = str(columns.get(self.by, "")).casefold()
        kind = _TYPES.get(re.sub(r"[\s_-]+", " ", name).strip())
        if kind is None:
            types = "choice, numerical, ocr, free-form, regression"
            raise RewardError(f"grader 'video_question' knows the types {types}, got {self.by}={name!r:.80}")
        wanted = reference if isinstance(reference, str) else str(reference)
        marked = extract_answer(wanted, ("tag", "box"))
        wanted = wanted if marked is None else marked.text
        found = extract_answer(visible_part(response, thinking=self.thinking), ("tag", "box"))
        if found is None:
            return Score(value=0.0, parts={kind: 0.0})
        if kind == "choice":
            score = await Choice().grade(f"<answer>{found.text}</answer>", wanted, **columns)
        elif kind in ("numerical", "regression"):
            score = _numeric(found.text, wanted, kind)
        elif kind == "ocr":
            score = await TextMatch(metric="wer", sources=()).grade(found.text, wanted)
        else:
            score = await _free_form(found.text, wanted)
        return score if score.failure is not None else replace(score, parts={kind: score.value})


async def _free_form(answer: str, reference: str) -> Score:
    metrics = [TextMatch(metric=name, sources=()) for name in ("rouge_1", "rouge_2", "rouge_l")]
    scores = [await metric.grade(answer, reference) for metric in metrics]
    return replace(scores[0], value=sum(score.value for score in scores) / len(scores))


def _numeric(answer: str, reference: str, kind: str) -> Score:
    found, wanted = last_number(answer), last_number(reference)
    if wanted is None:
        return failed(
            "reference", f"grader 'video_question' needs a number for {kind}, got {reference!r:.80}"
        )
    if found is None:
        return Score(value=0.0)
    distance = abs(found[1] - wanted[1])
    if kind == "numerical":
        return Score(value=float(round(found[1], 2) == round(wanted[1], 2)), parsed=found[0])
    relative = distance / abs(wanted[1]) if wanted[1] else distance
    return Score(value=max(0.0, float(1 - relative)), parsed=found[0])
