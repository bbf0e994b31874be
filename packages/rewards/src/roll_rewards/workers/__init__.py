"""Calls of slow or fragile functions in worker processes that can be killed."""

from roll_rewards.workers.adaptive import AdaptiveDeadline
from roll_rewards.workers.errors import CallFailed, WorkerDied, WorkerError, WorkerTimedOut
from roll_rewards.workers.pool import WorkerPool
from roll_rewards.workers.settings import PoolReport, SlowCall, WorkerLimits

__all__ = [
    "AdaptiveDeadline",
    "CallFailed",
    "PoolReport",
    "SlowCall",
    "WorkerDied",
    "WorkerError",
    "WorkerLimits",
    "WorkerPool",
    "WorkerTimedOut",
]
