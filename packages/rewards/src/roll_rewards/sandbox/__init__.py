"""Programs nobody trusts, run where they can do no harm, with an honest account of how they ended."""

from roll_rewards.sandbox.errors import SandboxError
from roll_rewards.sandbox.pool import SandboxPool
from roll_rewards.sandbox.records import Job, Limits, Outcome

__all__ = ["Job", "Limits", "Outcome", "SandboxError", "SandboxPool"]
