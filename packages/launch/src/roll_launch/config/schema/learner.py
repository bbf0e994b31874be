"""How the policy is updated."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Device, NonNegative, Threads
from roll_launch.config.section import Finding, Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and its schedule, over the optimizer steps of the whole stage."""

    learning_rate: float = Field(
        ge=0,
        description="The highest rate; 0 trains nothing, for a control run.",
        json_schema_extra={"also": ["lr", "actor_learning_rate"]},
    )
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="Decay of the two running means.")
    weight_decay: float = Field(
        default=0.0, ge=0, description="Of matrices; norms and biases are not decayed."
    )
    eps: float = Field(default=1e-8, gt=0, description="AdamW's.")
    max_grad_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0,
        description="A longer gradient is scaled down to this; null leaves it.",
        json_schema_extra={"also": ["clip_grad", "grad_clip"]},
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Of the rate after the warm-up.",
        json_schema_extra={"also": ["lr_scheduler_type", "lr_scheduler"]},
    )
    warmup_steps: NonNegative = Field(
        default=0,
        description="Optimizer steps in which the rate rises to learning_rate.",
        json_schema_extra={"also": ["lr_warmup_steps", "num_warmup_steps"]},
    )
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="Where linear and cosine end, as a share of learning_rate."
    )

    def findings(self) -> Iterator[Finding]:
        if self.min_lr_ratio > 0 and self.schedule == "constant":
            yield Finding(
                path=("min_lr_ratio",),
                message="has no effect with schedule constant",
                got=f"{self.min_lr_ratio}",
                hint="choose schedule linear or cosine, or leave it out",
            )


class _LocalLearner(Section):
    """One process on one device."""

    backend: Literal["local"] = Field(default="local", description="What trains: `local`, one process.")
    optimizer: OptimizerConfig = Field(description="AdamW and its schedule.")
    micro_batch_tokens: Count = Field(
        default=16384,
        description="Most tokens (with padding) in one pass; the gradient does not depend on it.",
        json_schema_extra={
            "also": ["micro_batch_size", "micro_batch_size_per_gpu", "per_device_train_batch_size"]
        },
    )
    device: Device = Field(default="cpu", description="`cpu`, or one device such as `cuda:0`.")
    threads: Threads | None = Field(default=None, description="CPU threads; null takes all processors.")


class SupervisedLearnerConfig(_LocalLearner):
    """The learner of a supervised stage."""

    mini_batches: ClassVar[int] = 1
    """A supervised batch is one mini-batch ..."""
    epochs: ClassVar[int] = 1
    """... and is passed once."""


class PolicyLearnerConfig(_LocalLearner):
    """The learner of a reinforcement-learning stage."""

    mini_batches: Count = Field(
        default=1,
        description="Optimizer steps that a step's samples are divided into, as evenly as they go.",
        json_schema_extra={"also": ["ppo_mini_batch_size", "num_mini_batches"]},
    )
    epochs: Count = Field(
        default=1,
        description="Passes over a step's samples.",
        json_schema_extra={"also": ["ppo_epochs", "num_ppo_epochs", "num_iterations"]},
    )


LearnerConfig: TypeAlias = SupervisedLearnerConfig | PolicyLearnerConfig
