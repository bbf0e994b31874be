"""Why a call in a worker process gave no result. Raised by `WorkerPool.call`."""

from roll_rewards.errors import RewardError


class WorkerError(RewardError):
    """The root of what a worker pool raises; the message names the function."""


class WorkerTimedOut(WorkerError):
    """The call ran past its deadline (wall clock); its worker was killed and replaced."""


class WorkerDied(WorkerError):
    """The worker ended during the call: crash, processor-time limit, exit; it was replaced."""


class CallFailed(WorkerError):
    """The function raised, could not be imported, or its result could not be sent back."""
