"""Grader `judge`: language models say how good a response is."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.judging.endpoint import Generate
from roll_rewards.judging.making import judge_of
from roll_rewards.judging.panel import AnswerKind, Asking, Opinion, opinion
from roll_rewards.judging.templates import filled, template_text
from roll_rewards.scores import Score, failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The judges' verdict, 0..1.

    A judge is an OpenAI-compatible endpoint, `{"url", "model", ...}` with the fields of `ChatEndpoint` (and
    `attempts`, `concurrency`, `per_minute`), or any async function from messages to text. A verdict that
    cannot be read is asked for again; when fewer than `quorum` judges have one, the score is a failure of
    kind `judge`.

    In a `preference` the response stands against the reference as a rival, or against the column
    `baseline`; with `swap` every judge is asked in both orders, and the mean counts, so that a liking for
    the first place cancels out.

    Parts: `judge_<n>` (each judge's value), `agreement` (1 - spread), `flips` (fraction of judges that
    changed sides with the order), `prompt_tokens`, `completion_tokens`, `cost`, `latency` (slowest judge,
    seconds), `tries`. `parsed` is the first judge's reason.

    Example: `Judge(judges=({"url": "http://127.0.0.1:8000/v1", "model": "qwen"},), template="correctness")`.

    Attributes:
        judges: At least one.
        template: Name of a template (`correctness`, `rating`, `pairwise`, `yes_no`) or text with
            `{response}`.
        kind: How a verdict is read: `yes_no`, `score`, `preference`, or `yes_probability` (a generative
            reward
            model: the probability of "yes" as first token).
        low: Score that is worth 0.
        high: Score that is worth 1.
        combine: `mean`, `median`, `majority` (of values rounded at one half; a tie is 0.5), `min` or `max`.
        quorum: Judges whose verdict is needed; None is all of them.
        swap: Whether a preference is asked for in both orders.
        tries: How often one judge is asked until its verdict can be read.
        system: System message.
        question: Column of the question; a list of messages is written out.
        thinking: Whether the judge sees the response's reasoning (`ignore`) or not.

    Raises:
        RewardError: There is no judge, or an option is out of its range or does not fit the others.
    """

    judges: tuple[Generate | Mapping[str, object], ...]
    template: str = "correctness"
    kind: AnswerKind = "yes_no"
    low: float = 1.0
    high: float = 10.0
    combine: Literal["mean", "median", "majority", "min", "max"] = "mean"
    quorum: int | None = None
    swap: bool = True
    tries: int = 3
    system: str | None = None
    question: str = "prompt"
    thinking: Thinking = "strip"

    def __post_init__(self) -> None:
        made = tuple(judge_of(judge, logprobs=self.kind == "yes_probability") for judge in self.judges)
        object.__setattr__(self, "judges", made)
        quorum = len(made) if self.quorum is None else self.quorum
        if not made or not 1 <= quorum <= len(made) or self.tries < 1 or not self.low < self.high:
            raise RewardError(
                "grader 'judge' needs a judge, quorum between 1 and their number, tries >= 1 and low < high, "
                f"got {len(made)} judges, {quorum}, {self.tries}, {self.low} and {self.high}"
            )
        pairs = "{first}" in template_text(self.template)
        if pairs != (self.kind == "preference"):
            raise RewardError(
                "kind 'preference' and a template with {first} and {second} belong together, "
                f"got kind {self.kind!r} and template {self.template!r:.80}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The judges' verdict. See `Grader.grade`."""
        shown = visible_part(response, thinking=self.thinking)
        if not shown.strip():
            return Score(value=0.0)
        prompts = self._prompts(shown, reference, columns)
        asking = Asking(kind=self.kind, low=self.low, high=self.high, tries=self.tries, system=self.system)
        async with asyncio.TaskGroup() as group:
            tasks = [
                [group.create_task(opinion(self._made(judge), prompt, asking)) for prompt in prompts]
                for judge in self.judges
            ]
        return self._score([[task.result() for task in row] for row in tasks])

    def _made(self, judge: Generate | Mapping[str, object]) -> Generate:
        return judge_of(judge, logprobs=self.kind == "yes_probability")

    def _prompts(self, shown: str, reference: object, columns: Mapping[str, object]) -> list[str]:
        template = template_text(self.template)
        values: dict[str, object] = {
            **columns,
            "question": _written_out(columns.get(self.question, "")),
            "reference": "" if reference is None else reference,
            "response": shown,
        }
        if self.kind != "preference":
            return [filled(template, values)]
        rival = columns.get("baseline", reference)
        if not isinstance(rival, str):
            raise RewardError(
                f"a preference needs a text as reference or in the column 'baseline', got {rival!r:.80}"
            )
        orders = [(shown, rival), (rival, shown)] if self.swap else [(shown, rival)]
        return [filled(template, {**values, "first": first, "second": second}) for first, second in orders]

    def _score(self, opinions: Sequence[Sequence[Opinion]]) -> Score:
        values, parts, flips = list[float](), dict[str, float](), 0
        for place, row in enumerate(opinions, start=1):
            said = [one.verdict.value for one in row]
            known = [value for value in said if value is not None]
            if len(known) < len(said):
                continue
            ours = [known[0], *(1.0 - value for value in known[1:])]
            flips += len(ours) == 2 and (ours[0] - 0.5) * (ours[1] - 0.5) < 0
            parts[f"judge_{place}"] = statistics.fmean(ours)
            values.append(parts[f"judge_{place}"])
        every = [one for row in opinions for one in row]
        if len(values) < (len(opinions) if self.quorum is None else self.quorum):
            reasons = "; ".join(
                dict.fromkeys(one.verdict.reason for one in every if one.verdict.value is None)
            )
            return failed(
                "judge", f"{len(values)} of {len(opinions)} judges have a verdict: {reasons[:1000]}"
            )
        parts |= {
            "agreement": 1.0 - (max(values) - min(values)),
            "prompt_tokens": float(sum(one.spent.prompt_tokens for one in every)),
            "completion_tokens": float(sum(one.spent.completion_tokens for one in every)),
            "cost": sum(one.spent.cost for one in every),
            "latency": max(one.spent.seconds for one in every),
            "tries": float(sum(one.tries for one in every)),
        }
        if self.kind == "preference" and self.swap:
            parts["flips"] = flips / len(values)
        return Score(value=_combined(values, self.combine), parts=parts, parsed=every[0].verdict.reason)


def _combined(values: Sequence[float], how: str) -> float:
    if how == "majority":
        votes = sum((value > 0.5) - (value < 0.5) for value in values)
        return 0.5 if votes == 0 else float(votes > 0)
    if how in ("min", "max"):
        return min(values) if how == "min" else max(values)
    return statistics.median(values) if how == "median" else statistics.fmean(values)


def _written_out(question: object) -> str:
    if isinstance(question, list):
        return "\n".join(
            f"{m.get('role', 'user')}: {m.get('content', '')}" for m in question if isinstance(m, Mapping)
        )
    return str(question)
