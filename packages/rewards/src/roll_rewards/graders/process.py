"""Grader `process`: every step of a solution is judged, by a language model or a reward model."""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders.nesting import nested_grader
from roll_rewards.judging.endpoint import Generate
from roll_rewards.judging.making import judge_of
from roll_rewards.judging.panel import AnswerKind, Asking, opinion
from roll_rewards.judging.templates import filled, template_text
from roll_rewards.scores import Score, failed

STEP_BREAKS = r"\n\s*\n|\n(?=\s*(?:step|\d+[.)])\s*\d*)"
"""Between steps: an empty line, or a line that begins with `Step 2` or `2.`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReward:
    """The steps' values put together.

    A step is judged with all that came before it: by a `judge` (fields of `ChatEndpoint`, or an async
    function) with a template, or by a `scorer`, any grader, which is given the response up to the step's
    end (for instance `reward_model` with `scale: sigmoid`).

    Parts: `step_<n>` (each step's value), `steps` (their number), `first_error` (number of the first step
    below one half; 0 when there is none). One step without a verdict leaves the whole without one.

    Example: `ProcessReward(scorer={"name": "reward_model", "options": {"model": "prm"}}, aggregate="min")`.

    Attributes:
        judge: Asked of each step; None with a scorer.
        scorer: Grader of each prefix; None with a judge.
        template: Name of a template, or text with `{question}`, `{before}` and `{response}` (the step).
        kind: How the judge's verdict is read.
        low: Score that is worth 0.
        high: Score that is worth 1.
        tries: How often the judge is asked until its verdict can be read.
        aggregate: `min`, `mean`, `product` or `last` of the steps' values.
        breaks: Regular expression of what stands between steps.
        max_steps: More steps than this are joined into the last one; at least 1.
        concurrency: Steps of one response that are judged at the same time, at least 1.
        question: Column of the question.

    Raises:
        RewardError: Not exactly one of judge and scorer is given, or an option is out of its range.

    Source: Let's Verify Step by Step (arXiv 2305.20050).
    """

    judge: Generate | Mapping[str, object] | None = None
    scorer: Grader | Mapping[str, object] | None = None
    template: str = "step"
    kind: AnswerKind = "yes_no"
    low: float = 1.0
    high: float = 10.0
    tries: int = 3
    aggregate: Literal["min", "mean", "product", "last"] = "min"
    breaks: str = STEP_BREAKS
    max_steps: int = 64
    concurrency: int = 8
    question: str = "prompt"

    def __post_init__(self) -> None:
        if (self.judge is None) == (self.scorer is None):
            raise RewardError("grader 'process' needs exactly one of the options 'judge' and 'scorer'")
        if self.max_steps < 1 or self.concurrency < 1 or self.tries < 1 or self.kind == "preference":
            raise RewardError(
                "grader 'process' needs max_steps, concurrency and tries of at least 1 and a kind other than "
                f"'preference', got {self.max_steps}, {self.concurrency}, {self.tries} and {self.kind!r}"
            )
        try:
            re.compile(self.breaks)
        except re.error as error:
            raise RewardError(f"option 'breaks' of grader 'process' does not compile: {error}") from error
        if self.judge is not None:
            object.__setattr__(self, "judge", judge_of(self.judge, logprobs=self.kind == "yes_probability"))
        if self.scorer is not None:
            made = nested_grader(self.scorer, where="option 'scorer' of grader 'process'")
            object.__setattr__(self, "scorer", made)
        template_text(self.template)

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The steps' values put together. See `Grader.grade`."""
        steps = split_steps(response, self.breaks, self.max_steps)
        if not steps:
            return Score(value=0.0)
        gate = asyncio.Semaphore(self.concurrency)

        async def judged(place: int) -> Score:
            async with gate:
                return await self._step(steps, place, reference, columns)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(judged(place)) for place in range(len(steps))]
        scores = [task.result() for task in tasks]
        for place, score in enumerate(scores, start=1):
            if score.failure is not None:
                return failed(score.failure.kind, f"step {place}: {score.failure.message}")
        values = [score.value for score in scores]
        parts = {f"step_{place}": value for place, value in enumerate(values, start=1)}
        parts["steps"] = float(len(values))
        parts["first_error"] = float(next((n for n, value in enumerate(values, start=1) if value < 0.5), 0))
        return Score(value=_aggregated(values, self.aggregate), parts=parts, parsed=steps[-1][:500])

    async def _step(
        self, steps: Sequence[str], place: int, reference: object, columns: Mapping[str, object]
    ) -> Score:
        before = "\n\n".join(steps[:place])
        if self.scorer is not None:
            scorer = nested_grader(self.scorer, where="process")
            return await scorer.grade("\n\n".join(steps[: place + 1]), reference, **columns)
        values: dict[str, object] = {
            **columns,
            "question": columns.get(self.question, ""),
            "reference": reference,
            "before": before or "(nothing yet)",
            "response": steps[place],
        }
        asking = Asking(kind=self.kind, low=self.low, high=self.high, tries=self.tries)
        judge = judge_of(self.judge or {}, logprobs=self.kind == "yes_probability")
        said = await opinion(judge, filled(template_text(self.template), values), asking)
        if said.verdict.value is None:
            return failed("judge", said.verdict.reason)
        return Score(value=said.verdict.value)


def split_steps(response: str, breaks: str = STEP_BREAKS, max_steps: int = 64) -> list[str]:
    """The steps of a response, without empty ones.

    Args:
        response: At most its first 200,000 characters are split.
        breaks: Regular expression of what stands between steps, letter case ignored.
        max_steps: More are joined into the last one.
    """
    pieces = [piece.strip() for piece in re.split(breaks, response[:200_000], flags=re.IGNORECASE)]
    steps = [piece for piece in pieces if piece]
    if len(steps) > max_steps:
        steps = [*steps[: max_steps - 1], "\n\n".join(steps[max_steps - 1 :])]
    return steps


def _aggregated(values: Sequence[float], how: str) -> float:
    if how == "mean":
        return math.fsum(values) / len(values)
    return {"min": min(values), "product": math.prod(values), "last": values[-1]}[how]
