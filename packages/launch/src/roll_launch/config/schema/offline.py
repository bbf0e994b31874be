"""What stages that train on given rows have in common: how the model is watched while it learns.

Such stages are `pipeline: preference` and `pipeline: distillation`.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from roll_launch.config.schema.checkpoint import SupervisedDeadlines
from roll_launch.config.schema.data import DataConfig
from roll_launch.config.schema.engines import EngineConfig, TransformersEngineConfig
from roll_launch.config.schema.health import HealthConfig
from roll_launch.config.schema.kinds import Count, Seconds
from roll_launch.config.schema.rewards import RewardsConfig
from roll_launch.config.schema.rollout import SamplingConfig
from roll_launch.config.section import Finding, Section


class GenerationConfig(Section):
    """Held-out accuracy of responses that the model samples, graded as in `pipeline: rlvr`."""

    data: DataConfig = Field(description="Prompts that are not trained on, with what their grader needs.")
    prompts: Count = Field(description="How many of them, from the first; one response each.")
    engine: EngineConfig = Field(default=TransformersEngineConfig(), description="What generates.")
    replicas: Count = Field(default=1, description="Engines side by side.")
    sampling: SamplingConfig = Field(description="How tokens are sampled.")
    max_prompt_tokens: Count = Field(description="Longest prompt; a longer one stops before the run.")
    rewards: RewardsConfig = Field(description="How responses are scored.")
    sync_tolerance: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="How far log-probs of engine and learner may differ on a probe, in nats; null goes by the"
        " type of the weights.",
    )
    health: HealthConfig = Field(
        default=HealthConfig(), description="What happens to workers that die or hang."
    )

    def findings(self) -> Iterator[Finding]:
        if self.rewards.grader is None:
            yield Finding(path=("rewards", "grader"), message="accuracy needs one", got="null")
        if self.rewards.overlong is not None:
            yield Finding(
                path=("rewards", "overlong"), message="shapes rewards of a training step", allowed="null"
            )


class OfflineEvaluationConfig(Section):
    """What is measured on held-out rows before, while and after the stage trains."""

    data: DataConfig | None = Field(
        default=None, description="Rows of the stage's own kind that are not trained on; null for none."
    )
    rows: Count = Field(default=512, description="How many of them, from the first.")
    generation: GenerationConfig | None = Field(
        default=None, description="Accuracy of sampled responses; null samples none."
    )
    every: Count = Field(
        description="Steps between evaluations.",
        json_schema_extra={"also": ["eval_steps", "test_freq", "eval_interval"]},
    )


class OfflineDeadlines(SupervisedDeadlines):
    """Seconds after which a wait ends the run, naming what it waited for."""

    evaluation_s: Seconds = Field(
        default=3600.0, description="For one evaluation, and for what is computed before the first step."
    )
    sync_s: Seconds = Field(default=600.0, description="For one weight sync to engines of an evaluation.")
