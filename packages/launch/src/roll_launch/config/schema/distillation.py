"""Teachers, and the stage that follows their distributions on given responses."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from roll_learners.distillation import Distillation
from roll_learners.errors import LearnerError

from roll_launch.config.schema.alarms import SupervisedAlarmsConfig
from roll_launch.config.schema.checkpoint import CheckpointConfig
from roll_launch.config.schema.data import MixtureData, PromptDataConfig
from roll_launch.config.schema.fit import micro_batch_findings, warmup_findings
from roll_launch.config.schema.kinds import Count, Device, Overlong, StageName, Threads
from roll_launch.config.schema.learner import SupervisedLearnerConfig
from roll_launch.config.schema.model import ModelConfig
from roll_launch.config.schema.offline import OfflineDeadlines, OfflineEvaluationConfig
from roll_launch.config.section import Finding, Section

Weight = Annotated[float, Field(ge=0)]


class _Teacher(Section):
    """A model that is followed."""

    model: ModelConfig = Field(
        description="With the student's tokenizer.", json_schema_extra={"also": ["teacher_model"]}
    )
    domains: tuple[str, ...] | None = Field(
        default=None, description="Domains of a mixture that learn from it; null for all."
    )
    placement: Literal["trainer", "own"] = Field(
        default="trainer",
        description="`trainer`: in the trainer's process, on its device; `own`: a role of its own, which"
        " computes while the student trains.",
    )
    device: Device = Field(default="cpu", description="Of a role of its own.")
    threads: Threads | None = Field(
        default=None, description="CPU threads of a role of its own; null shares the processors."
    )


class TeacherConfig(_Teacher):
    """A teacher of `pipeline: distillation`."""

    weight: Weight = Field(default=1.0, description="Of its divergence among those of all teachers.")


class PolicyTeacherConfig(_Teacher):
    """A teacher of on-policy distillation: its log-probs of what the policy sampled are a reward."""

    coef: Weight = Field(
        default=1.0,
        description="Weight of the KL estimate that is subtracted from each token's advantage.",
        json_schema_extra={"also": ["opd_kl_coef"]},
    )
    estimator: Literal["k1", "k3"] = Field(default="k1", description="Of the KL to the teacher.")


class DistillationConfig(Section):
    """What the student learns from the teachers' distributions."""

    divergence: Literal[
        "forward_kl",
        "reverse_kl",
        "generalised_js",
        "skewed_forward_kl",
        "skewed_reverse_kl",
        "adaptive_kl",
    ] = Field(
        default="forward_kl",
        description="Between teacher and student.",
        json_schema_extra={"also": ["kd_objective"]},
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Divides the logits of both; no factor T^2 is applied.",
        json_schema_extra={"also": ["kd_temperature"]},
    )
    weight: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="Of the divergence; the rest is that of the negative log-likelihood.",
        json_schema_extra={"also": ["distill_loss_weight"]},
    )
    top_k: Count | None = Field(
        default=None,
        description="Tokens of each teacher's distribution that are compared; null for all.",
        json_schema_extra={"also": ["logits_topk"]},
    )
    top_mass: Literal["renormalised", "student_full"] = Field(
        default="renormalised",
        description="With top_k: `renormalised` takes both over those tokens alone, `student_full` the"
        " student over the whole vocabulary.",
    )
    vocabulary: Count | None = Field(
        default=None,
        description="Compare so many first tokens, where models are padded to different sizes; null for all.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Of the divergence: beta (generalised_js), skew (skewed ones), head_mass (adaptive_kl).",
    )

    def distillation(self) -> Distillation:
        """What it comes to.

        Raises:
            LearnerError: A value that roll_learners does not take; a loaded configuration has none.
        """
        return Distillation(**self.model_dump())

    def findings(self) -> Iterator[Finding]:
        numbers = {k: v for k, v in self.options.items() if isinstance(v, int | float)}
        for name in self.options.keys() - numbers.keys():
            yield Finding(path=("options", name), message="not a number", got=repr(self.options[name]))
        try:
            self.distillation()
        except LearnerError as error:
            yield Finding(path=("options",) if self.options else (), message=str(error))
        if self.top_mass == "student_full" and self.top_k is None:
            yield Finding(
                path=("top_mass",), message="has no effect without top_k", got="student_full", allowed="null"
            )


class DistillationStage(Section):
    """Distillation: a student follows teachers on given responses."""

    name: StageName = Field(description="Letters, digits, _ and -; later stages and the command line use it.")
    pipeline: Literal["distillation"] = Field(description="Distillation on given responses.")
    model: ModelConfig = Field(description="The student.")
    teachers: tuple[TeacherConfig, ...] = Field(min_length=1, description="At least one.")
    data: PromptDataConfig = Field(description="Prompts with responses, of whoever.")
    evaluation: OfflineEvaluationConfig | None = Field(
        default=None, description="What is measured on held-out rows; null measures nothing."
    )
    objective: DistillationConfig = Field(default=DistillationConfig(), description="What is computed.")
    teacher_logits: Literal["once", "every_step"] = Field(
        default="every_step",
        description="When teachers compute: at `every_step`, or `once` for each row, of which the top_k"
        " logits then stay in memory (8 x top_k bytes a token and teacher).",
    )
    learner: SupervisedLearnerConfig = Field(description="How the student is trained.")
    steps: Count = Field(
        description="Optimizer steps.", json_schema_extra={"also": ["max_steps", "total_steps"]}
    )
    batch_size: Count = Field(description="Rows in one step.")
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

    def findings(self) -> Iterator[Finding]:
        yield from warmup_findings(self.learner.optimizer, self.steps)
        yield from micro_batch_findings(self.learner, self.max_tokens, "max_tokens")
        if self.teacher_logits == "once" and self.objective.top_k is None:
            yield Finding(
                path=("teacher_logits",),
                message="whole distributions are too many to keep: set objective.top_k",
                got="once",
                allowed="every_step without top_k",
            )
        yield from domain_findings(self.teachers, self.data)
        for index, domain in enumerate(self.data.domains if isinstance(self.data, MixtureData) else ()):
            if (domain.weight, domain.least, domain.most) != (1.0, 0, None):
                yield Finding(
                    path=("data", "domains", index),
                    message="every row of every domain is used once an epoch: no weight, least or most",
                )
        for index, teacher in enumerate(self.teachers):
            if teacher.placement == "own" and self.objective.top_k is None:
                yield Finding(
                    path=("teachers", index, "placement"),
                    message="a teacher in a process of its own sends its top_k logits: set objective.top_k",
                    got="own",
                    allowed="trainer without top_k",
                )


def domain_findings(teachers: tuple[_Teacher, ...], data: PromptDataConfig) -> Iterator[Finding]:
    """Domains of teachers that the data do not have."""
    known = [domain.name for domain in data.domains] if isinstance(data, MixtureData) else []
    for index, teacher in enumerate(teachers):
        unknown = [name for name in teacher.domains or () if name not in known]
        if unknown:
            yield Finding(
                path=("teachers", index, "domains"),
                message="no such domain in the data",
                got=", ".join(unknown),
                allowed=", ".join(known) or "null, for data without domains",
            )
