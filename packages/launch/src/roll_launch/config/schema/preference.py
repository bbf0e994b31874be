"""The stage that learns from preferences between responses, and what it computes."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from roll_learners.errors import LearnerError
from roll_learners.preference import PREFERENCES, Kto, Preference
from roll_learners.registry import PREFERENCE_LOSSES

from roll_launch.config.schema.alarms import SupervisedAlarmsConfig
from roll_launch.config.schema.checkpoint import CheckpointConfig
from roll_launch.config.schema.data import DataConfig
from roll_launch.config.schema.fit import micro_batch_findings, warmup_findings
from roll_launch.config.schema.kinds import Count, Overlong, StageName
from roll_launch.config.schema.learner import SupervisedLearnerConfig
from roll_launch.config.schema.model import ModelConfig
from roll_launch.config.schema.offline import OfflineDeadlines, OfflineEvaluationConfig
from roll_launch.config.section import Finding, Section

Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]

_OTHERS: Mapping[str, tuple[str, ...]] = {
    "kto": ("beta", "desirable_weight", "undesirable_weight"),
    "reward_model": ("margin",),
}
"""Keys of the presets that are not losses of pairs of log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelRule:
    """Bradley-Terry: RewardModelRule(margin=0.0), by how much a chosen response's score should be higher."""

    margin: float = 0.0


PreferenceRule: TypeAlias = Preference | Kto | RewardModelRule


class PreferenceConfig(Section):
    """What is computed: a preset, and those of its values that differ. See docs/preference.md."""

    preset: str = Field(description=f"One of {', '.join((*PREFERENCES, *_OTHERS))}.")
    beta: Positive | None = Field(
        default=None,
        description="Weight of the log-ratio to the reference, or of the log-probs in simpo.",
    )
    label_smoothing: Annotated[float, Field(ge=0, le=0.5)] | None = Field(
        default=None, description="Share of the labels that is taken to be wrong (dpo, cdpo, robust_dpo)."
    )
    gamma: float | None = Field(
        default=None,
        description="Margin (simpo).",
        json_schema_extra={"also": ["simpo_gamma"]},
    )
    coef: Positive | None = Field(default=None, description="Weight of the odds ratio (orpo).")
    nll_coef: Weight | None = Field(
        default=None,
        description="Weight of the chosen responses' negative log-likelihood, added to a loss of pairs.",
        json_schema_extra={"also": ["rpo_alpha", "sft_coef"]},
    )
    average: bool | None = Field(
        default=None, description="Log-probs of responses are means over their tokens, not sums (pairs)."
    )
    desirable_weight: Weight | None = Field(default=None, description="Of desirable responses (kto).")
    undesirable_weight: Weight | None = Field(default=None, description="Of undesirable ones (kto).")
    margin: float | None = Field(
        default=None, description="By how much a chosen response's score should be higher (reward_model)."
    )

    def rule(self) -> PreferenceRule:
        """What it comes to.

        Raises:
            LearnerError: A value that roll_learners does not take; a loaded configuration has none.
        """
        given = self._given()
        if self.preset == "reward_model":
            return RewardModelRule(**given)
        if self.preset == "kto":
            return Kto(**given)
        made = PREFERENCES[self.preset]
        nll_coef, average = given.pop("nll_coef", made.nll_coef), bool(given.pop("average", made.average))
        return replace(made, options={**made.options, **given}, nll_coef=nll_coef, average=average)

    def findings(self) -> Iterator[Finding]:
        presets = (*PREFERENCES, *_OTHERS)
        if self.preset not in presets:
            near = difflib.get_close_matches(self.preset, presets, n=1)
            yield Finding(
                path=("preset",),
                message="unknown preset",
                got=self.preset,
                allowed=", ".join(presets),
                hint=f"did you mean {near[0]}?" if near else None,
            )
            return
        known = _OTHERS.get(self.preset) or (
            *PREFERENCE_LOSSES.part(PREFERENCES[self.preset].loss).parameters,
            "nll_coef",
            "average",
        )
        unused = [name for name in self._given() if name not in known]
        for name in unused:
            yield Finding(
                path=(name,), message=f"preset {self.preset} has no such value", allowed=", ".join(known)
            )
        if unused:
            return
        try:
            self.rule()
        except LearnerError as error:
            yield Finding(path=(), message=str(error))

    def _given(self) -> dict[str, float]:
        return {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name != "preset" and getattr(self, name) is not None
        }


class PreferenceColumns(Section):
    """Names of columns, for rows whose columns are not called what they usually are."""

    chosen: str = Field(default="chosen", description="Column of the better response.")
    rejected: str = Field(default="rejected", description="Column of the other one.")
    label: str = Field(
        default="label", description="Column that says whether a single response is desirable (kto)."
    )


class PreferenceStage(Section):
    """Learning from preferences: DPO and its relatives, ORPO, SimPO, KTO, or a reward model."""

    name: StageName = Field(description="Letters, digits, _ and -; later stages and the command line use it.")
    pipeline: Literal["preference"] = Field(description="Learning from preferences.")
    model: ModelConfig = Field(
        description="What is trained, and the reference that it is compared with; of a reward model the"
        " backbone."
    )
    data: DataConfig = Field(
        description="Prompts, each with a chosen and a rejected response; of kto with a response and a label."
    )
    columns: PreferenceColumns = Field(
        default=PreferenceColumns(), description="What the columns of responses and labels are called."
    )
    evaluation: OfflineEvaluationConfig | None = Field(
        default=None, description="What is measured on held-out rows; null measures nothing."
    )
    objective: PreferenceConfig = Field(description="What is computed.")
    reference: Literal["once", "every_step"] | None = Field(
        default=None,
        description="When the reference's log-probs are computed: `once`, of all rows before the first step,"
        " after which the reference leaves the memory, or at `every_step`. null is once, of kto every_step.",
    )
    learner: SupervisedLearnerConfig = Field(description="How it is trained.")
    steps: Count = Field(
        description="Optimizer steps.", json_schema_extra={"also": ["max_steps", "total_steps"]}
    )
    batch_size: Count = Field(description="Pairs, or labelled responses, in one step.")
    max_tokens: Count = Field(
        description="Longest prompt and response together.",
        json_schema_extra={"also": ["max_length", "max_seq_length", "max_len"]},
    )
    overlong: Overlong = Field(
        default="error",
        description="What a longer row does: `error` stops before the run, `drop` leaves it out.",
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="What is kept while it trains."
    )
    alarms: SupervisedAlarmsConfig | None = Field(
        default=SupervisedAlarmsConfig(), description="What it warns of; null switches all alarms off."
    )
    deadlines: OfflineDeadlines = Field(default=OfflineDeadlines(), description="Bounds of every wait.")

    @property
    def reference_once(self) -> bool:
        """Whether the reference's log-probs are computed before the first step."""
        if self.reference is None:
            return self.objective.preset != "kto"
        return self.reference == "once"

    def findings(self) -> Iterator[Finding]:
        yield from warmup_findings(self.learner.optimizer, self.steps)
        yield from micro_batch_findings(self.learner, self.max_tokens, "max_tokens")
        preset = self.objective.preset
        if preset == "kto":
            if self.batch_size < 2:
                yield Finding(
                    path=("batch_size",),
                    message="kto estimates its baseline from the responses of other rows of the step",
                    got="1",
                    allowed="int >= 2",
                )
            if self.reference == "once":
                yield Finding(
                    path=("reference",),
                    message="the baseline of kto pairs prompts with responses anew in every step",
                    got="once",
                    allowed="every_step or null",
                )
        if preset == "reward_model" and self.learner.lora is not None:
            yield Finding(path=("learner", "lora"), message="a reward model is trained whole", allowed="null")
        if preset == "reward_model" and self.evaluation is not None and self.evaluation.generation:
            yield Finding(
                path=("evaluation", "generation"), message="a reward model samples nothing", allowed="null"
            )
