"""Critics beside a policy: what they are made of and how they learn."""

from typing import Literal

from pydantic import Field

from roll_launch.config.schema.kinds import Count, NonNegative, Threads
from roll_launch.config.schema.learner import OptimizerConfig
from roll_launch.config.schema.model import ModelConfig
from roll_launch.config.section import Section


class CriticsConfig(Section):
    """Models that tell a value for each token. They may be smaller than the policy.

    `algorithm` says what is done with them: `ppo` takes one, `appo` two or more, among which the responses of
    each prompt are dealt.
    """

    count: Count = Field(default=1, description="How many. They differ in the weights of their value heads.")
    model: ModelConfig = Field(
        description="The backbone; its output is replaced by one number. With the policy's tokenizer.",
        json_schema_extra={"also": ["critic_pretrain", "critic_model"]},
    )
    optimizer: OptimizerConfig = Field(description="AdamW and its schedule, of each.")
    placement: Literal["trainer", "own"] = Field(
        default="trainer",
        description="`trainer`: in the trainer's process, one after the other; `own`: each in a process of"
        " its own, where they learn beside each other and, where the algorithm lets them, beside the policy.",
    )
    threads: Threads | None = Field(
        default=None, description="CPU threads of each in a process of its own; null shares the processors."
    )
    warmup_steps: NonNegative = Field(
        default=0,
        description="Steps at the beginning of the stage in which only they learn.",
        json_schema_extra={"also": ["critic_warmup", "num_critic_warmup_steps"]},
    )
