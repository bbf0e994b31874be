"""When a worker counts as lost, and how often lost ones are replaced."""

from pydantic import Field

from roll_launch.config.schema.kinds import NonNegative, Seconds
from roll_launch.config.section import Section


class HealthConfig(Section):
    """Rollout actors and reward workers that die or hang are replaced while the stage goes on."""

    every_s: Seconds = Field(default=10.0, description="Seconds between two questions for a sign of life.")
    answer_s: Seconds = Field(
        default=60.0, description="Seconds for an answer; without one the process is ended and replaced."
    )
    stall_s: Seconds = Field(
        default=900.0, description="Seconds that an engine with requests may go without sampling a token."
    )
    max_replacements: NonNegative = Field(
        default=8, description="Losses of one role, in one attempt at the stage, beyond which the run ends."
    )
