"""What is kept of a stage, and how long its parts may take."""

from pydantic import Field

from roll_launch.config.schema.kinds import Count, Seconds
from roll_launch.config.section import Section


class CheckpointConfig(Section):
    """Checkpoints while a stage trains; its final model is always written. See docs/resume.md."""

    every: Count | None = Field(
        default=50,
        description="Steps between checkpoints; null writes none, and a resume begins the stage again.",
        json_schema_extra={"also": ["save_freq", "save_steps"]},
    )
    keep: Count = Field(
        default=2,
        description="Newest checkpoints that are kept.",
        json_schema_extra={"also": ["save_total_limit"]},
    )
    deadline_s: Seconds = Field(default=1800.0, description="Seconds for writing one.")


class SupervisedDeadlines(Section):
    """Seconds after which a wait ends the run, naming what it waited for."""

    start_s: Seconds = Field(default=600.0, description="For the roles to start.")
    step_s: Seconds = Field(default=3600.0, description="For one update.")


class PolicyDeadlines(SupervisedDeadlines):
    """Seconds after which a wait ends the run, naming what it waited for."""

    rollout_s: Seconds = Field(
        default=3600.0, description="For the rollout of one step, and for one evaluation."
    )
    sync_s: Seconds = Field(default=600.0, description="For one weight sync.")
