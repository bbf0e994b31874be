"""The stages of a run: supervised fine-tuning, reinforcement learning with verifiable rewards, preferences
and distillation."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from roll_learners.algorithm import Algorithm
from roll_learners.errors import LearnerError

from roll_launch.config.schema.agentic import AgenticStage
from roll_launch.config.schema.alarms import PolicyAlarmsConfig, SupervisedAlarmsConfig
from roll_launch.config.schema.algorithm import AlgorithmConfig
from roll_launch.config.schema.checkpoint import CheckpointConfig, PolicyDeadlines, SupervisedDeadlines
from roll_launch.config.schema.critics import CriticsConfig
from roll_launch.config.schema.data import CurriculumConfig, DataConfig, MixtureData, PromptDataConfig
from roll_launch.config.schema.distillation import (
    DistillationStage,
    PolicyTeacherConfig,
    domain_findings,
)
from roll_launch.config.schema.fit import micro_batch_findings, warmup_findings
from roll_launch.config.schema.health import HealthConfig
from roll_launch.config.schema.kinds import Count, Overlong, StageName
from roll_launch.config.schema.learner import AnyPolicyLearner, AnySupervisedLearner, PolicyFsdp2Config
from roll_launch.config.schema.model import ModelConfig
from roll_launch.config.schema.preference import PreferenceStage
from roll_launch.config.schema.rewards import RewardsConfig
from roll_launch.config.schema.rollout import RolloutConfig
from roll_launch.config.section import Finding, Section


class SftStage(Section):
    """Supervised fine-tuning on demonstrations."""

    name: StageName = Field(description="Letters, digits, _ and -; later stages and the command line use it.")
    pipeline: Literal["sft"] = Field(description="Supervised fine-tuning.")
    model: ModelConfig = Field(description="What is trained.")
    data: DataConfig = Field(description="Prompts with responses.")
    learner: AnySupervisedLearner = Field(description="How it is trained.")
    steps: Count = Field(
        description="Optimizer steps.", json_schema_extra={"also": ["max_steps", "total_steps"]}
    )
    batch_size: Count = Field(description="Demonstrations in one step.")
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
    deadlines: SupervisedDeadlines = Field(default=SupervisedDeadlines(), description="Bounds of every wait.")

    def findings(self) -> Iterator[Finding]:
        yield from warmup_findings(self.learner.optimizer, self.steps)
        yield from micro_batch_findings(self.learner, self.max_tokens, "max_tokens")


class EvaluationConfig(Section):
    """Accuracy on held-out prompts, sampled as in training: before, while and after the stage trains."""

    data: DataConfig = Field(description="Prompts that are not trained on.")
    prompts: Count = Field(description="How many of them, from the first; one response each.")
    every: Count = Field(
        description="Steps between evaluations.",
        json_schema_extra={"also": ["eval_steps", "test_freq", "eval_interval"]},
    )


class RlvrStage(Section):
    """Reinforcement learning with verifiable rewards."""

    name: StageName = Field(description="Letters, digits, _ and -; later stages and the command line use it.")
    pipeline: Literal["rlvr"] = Field(description="Reinforcement learning with verifiable rewards.")
    model: ModelConfig = Field(description="What is trained.")
    data: PromptDataConfig = Field(description="Prompts, with what their graders need.")
    curriculum: CurriculumConfig | None = Field(
        default=None, description="Draw prompts by how hard they are now; null takes all, epoch after epoch."
    )
    evaluation: EvaluationConfig | None = Field(
        default=None, description="Held-out accuracy; null measures none."
    )
    algorithm: AlgorithmConfig = Field(description="Advantage, loss and KL.")
    critics: CriticsConfig | None = Field(
        default=None, description="For algorithms that estimate values, such as ppo and appo; else null."
    )
    teachers: tuple[PolicyTeacherConfig, ...] = Field(
        default=(), description="For on-policy distillation, pure or with rewards; see docs/distillation.md."
    )
    rollout: RolloutConfig = Field(description="How completions are generated.")
    rewards: RewardsConfig = Field(description="How they are scored.")
    learner: AnyPolicyLearner = Field(description="How the policy is updated.")
    steps: Count = Field(
        description="Training steps, each with one rollout and one weight sync.",
        json_schema_extra={"also": ["max_steps", "total_steps", "total_training_steps"]},
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="What is kept while it trains."
    )
    health: HealthConfig = Field(
        default=HealthConfig(), description="What happens to workers that die or hang."
    )
    alarms: PolicyAlarmsConfig | None = Field(
        default=PolicyAlarmsConfig(), description="What it warns of; null switches all alarms off."
    )
    deadlines: PolicyDeadlines = Field(default=PolicyDeadlines(), description="Bounds of every wait.")

    def findings(self) -> Iterator[Finding]:
        samples = self.rollout.prompts_per_step * self.rollout.group_size
        if self.learner.mini_batches > samples:
            yield Finding(
                path=("learner", "mini_batches"),
                message=f"more than a step has samples: prompts_per_step {self.rollout.prompts_per_step} x"
                f" group_size {self.rollout.group_size}",
                got=f"{self.learner.mini_batches}",
                allowed=f"1 to {samples}",
            )
        steps = self.steps * self.learner.mini_batches * self.learner.epochs
        yield from warmup_findings(self.learner.optimizer, steps)
        longest = self.rollout.max_prompt_tokens + self.rollout.sampling.max_tokens
        what = "rollout.max_prompt_tokens + rollout.sampling.max_tokens"
        yield from micro_batch_findings(self.learner, longest, what)
        yield from self._group_findings()
        yield from self._ranks_findings()
        yield from self._overlong_findings()
        yield from self._quota_findings()

    def _group_findings(self) -> Iterator[Finding]:
        try:
            algorithm = self.algorithm.algorithm()
        except LearnerError:
            return  # Said already by the algorithm's own findings.
        yield from self._critic_findings(algorithm)
        yield from self._teacher_findings(algorithm)
        if "turn_states" in algorithm.needs:
            yield Finding(
                path=("algorithm", "preset"),
                message="needs turn_states, which this pipeline does not provide; pipeline agentic does",
                got=self.algorithm.preset,
            )
        if algorithm.needs_group_baseline and self.rollout.group_size == 1:
            yield Finding(
                path=("rollout", "group_size"),
                message=f"{self.algorithm.preset} compares completions of one prompt; 1 trains nothing",
                got="1",
                allowed="int >= 2",
            )

    def _critic_findings(self, algorithm: Algorithm) -> Iterator[Finding]:
        preset = self.algorithm.preset
        if not algorithm.needs_critic:
            if self.critics is not None:
                yield Finding(path=("critics",), message=f"{preset} estimates no values", allowed="null")
            return
        if self.critics is None:
            yield Finding(path=("critics",), message=f"{preset} needs them", got="null", allowed="a mapping")
            return
        if algorithm.critic.compares and self.critics.count < 2:
            yield Finding(
                path=("critics", "count"),
                message=f"{preset} compares critics with each other",
                got=f"{self.critics.count}",
                allowed="int >= 2",
            )
        steps = self.steps * self.learner.mini_batches * self.learner.epochs
        yield from warmup_findings(self.critics.optimizer, steps, ("critics", "optimizer"))

    def _teacher_findings(self, algorithm: Algorithm) -> Iterator[Finding]:
        yield from domain_findings(self.teachers, self.data)
        if "teacher" in algorithm.needs:
            if not self.teachers:
                message = f"{self.algorithm.preset} learns from teachers alone: there is none"
                yield Finding(path=("teachers",), message=message, allowed="at least one")
        elif self.rewards.grader is None:
            yield Finding(
                path=("rewards", "grader"),
                message=f"{self.algorithm.preset} learns from rewards",
                got="null",
                allowed="a grader",
            )

    def _quota_findings(self) -> Iterator[Finding]:
        if not isinstance(self.data, MixtureData) or not self.data.domains:
            return
        prompts = self.rollout.prompts_per_step
        least = sum(domain.least for domain in self.data.domains)
        most = sum(prompts if domain.most is None else domain.most for domain in self.data.domains)
        if not least <= prompts <= most:
            yield Finding(
                path=("data", "domains"),
                message="quotas that no step of rollout.prompts_per_step prompts can keep",
                got=f"at least {least} and at most {most} prompts",
                allowed=f"at least <= {prompts} <= at most",
            )

    def _ranks_findings(self) -> Iterator[Finding]:
        """What a learner on several ranks cannot do."""
        if not isinstance(self.learner, PolicyFsdp2Config):
            return
        if self.critics is not None:
            yield Finding(path=("critics",), message="not with learner.backend fsdp2", allowed="null")
        kl = self.algorithm.overrides().get("kl")
        if isinstance(kl, dict) and kl.get("estimator") == "full":
            yield Finding(
                path=("algorithm", "kl", "estimator"), message="not with learner.backend fsdp2", got="full"
            )

    def _overlong_findings(self) -> Iterator[Finding]:
        shaping, limit = self.rewards.overlong, self.rollout.sampling.max_tokens
        if shaping is not None and shaping.buffer_tokens > limit:
            yield Finding(
                path=("rewards", "overlong", "buffer_tokens"),
                message="longer than the longest response, rollout.sampling.max_tokens",
                got=f"{shaping.buffer_tokens}",
                allowed=f"1 to {limit}",
            )


StageConfig: TypeAlias = Annotated[
    SftStage | RlvrStage | AgenticStage | PreferenceStage | DistillationStage, Field(discriminator="pipeline")
]
