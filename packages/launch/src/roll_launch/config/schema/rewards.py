"""How responses become rewards."""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field
from roll_rewards import GRADERS, RewardError, make_grader

from roll_launch.config.schema.kinds import Count, Seconds
from roll_launch.config.schema.reward_roles import RewardModelConfig, asked_models
from roll_launch.config.section import Finding, Section

IMPORTING_GRADERS = frozenset({"python", "reasoning_gym"})
"""Graders that import other packages when made; whether those are there is for `existence.py` to say."""


class GraderConfig(Section):
    """A grader of roll_rewards by name."""

    name: str = Field(description=f"One of {', '.join(GRADERS)}.")
    options: dict[str, Any] = Field(default_factory=dict, description="Of the grader; see roll-rewards.")

    def findings(self) -> Iterator[Finding]:
        if self.name not in GRADERS:
            hint = _did_you_mean(self.name, list(GRADERS))
            yield Finding(
                path=("name",), message="unknown grader", got=self.name, allowed=", ".join(GRADERS), hint=hint
            )
            return
        # Every class in the table is a dataclass; its protocol cannot say so.
        fields = {field.name: field for field in dataclasses.fields(GRADERS[self.name])}  # type: ignore[arg-type]
        unknown = [option for option in self.options if option not in fields]
        for option in unknown:
            yield Finding(
                path=("options", option),
                message=f"unknown option of grader {self.name}",
                allowed=", ".join(fields) or "none",
                hint=_did_you_mean(option, list(fields)),
            )
        missing = [
            name
            for name, field in fields.items()
            if field.default is field.default_factory is dataclasses.MISSING and name not in self.options
        ]
        for name in missing:
            yield Finding(path=("options", name), message=f"required option of grader {self.name} is missing")
        if not unknown and not missing and self.name not in IMPORTING_GRADERS:
            yield from self._refusal()

    def _refusal(self) -> Iterator[Finding]:
        """What the grader itself has against its options."""
        try:
            make_grader(self.name, **self.options)
        except RewardError as error:
            about = [option for option in self.options if f"'{option}'" in str(error)]
            path = ("options", about[0]) if len(about) == 1 else ("options",)
            yield Finding(path=path, message=str(error))


class OverlongConfig(Section):
    """A soft penalty for responses near the limit (DAPO): 0 before the buffer, falling to -1 at the limit."""

    buffer_tokens: Count = Field(description="Width of the falling part, before `sampling.max_tokens`.")


class AdaptiveDeadlineConfig(Section):
    """A deadline that follows the longest grading of a correct answer so far (RollPacker).

    What it cuts is a failure and not a 0: it is graded again, then left out, and counted.
    """

    least_s: Seconds = Field(default=2.0, description="Shortest deadline.")
    factor: Annotated[float, Field(ge=1)] = Field(
        default=1.5, description="Times the longest correct grading so far."
    )
    most_s: Seconds = Field(
        default=30.0, description="Longest deadline, and that before any answer was correct."
    )

    def findings(self) -> Iterator[Finding]:
        if self.most_s < self.least_s:
            yield Finding(
                path=("most_s",), message="below least_s", got=f"{self.most_s}", allowed=f">= {self.least_s}"
            )


class RewardsConfig(Section):
    """Grading of each completion, and shaping of the scores."""

    grader: GraderConfig | None = Field(
        description="What gives the score; null for none, where teachers take its place.",
        json_schema_extra={"also": ["reward_fn", "rm_type"]},
    )
    models: tuple[RewardModelConfig, ...] = Field(
        default=(), description="Reward models as roles, for graders `reward_model` that name one."
    )
    workers: Count = Field(default=1, description="Processes that grade.")
    deadline_s: Seconds = Field(
        default=60.0, description="Seconds for one grading; then it is a failure, not a 0."
    )
    adaptive_deadline: AdaptiveDeadlineConfig | None = Field(
        default=None, description="A shorter deadline once answers were correct; null has none."
    )
    concurrency: Count = Field(
        default=32,
        description="Gradings that one worker has under way; others wait, and their clock with them.",
    )
    overlong: OverlongConfig | None = Field(
        default=None,
        description="Soft penalty for long responses.",
        json_schema_extra={"also": ["overlong_buffer"]},
    )

    def findings(self) -> Iterator[Finding]:
        asked = set(asked_models(self.grader.model_dump())) if self.grader is not None else set()
        names = [model.name for model in self.models]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Finding(
                    path=("models", index, "name"), message="names two reward models alike", got=name
                )
            elif name not in asked:
                yield Finding(
                    path=("models", index, "name"),
                    message="no grader `reward_model` has it as its option `model`",
                    got=name,
                    allowed=", ".join(sorted(asked)) or "none, without such a grader",
                )


def _did_you_mean(name: str, known: list[str]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None
