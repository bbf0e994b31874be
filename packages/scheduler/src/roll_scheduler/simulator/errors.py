"""What the simulator raises."""

from roll_scheduler.errors import SchedulerError

__all__ = ["SimulationError"]


class SimulationError(SchedulerError):
    """A setting that cannot be simulated: what was got, what is allowed, and where."""
