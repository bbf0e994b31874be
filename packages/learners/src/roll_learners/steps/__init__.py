"""One training step of each kind: samples in, updates done, metrics out."""

from roll_learners.steps.policy import policy_step
from roll_learners.steps.supervised import supervised_step

__all__ = ["policy_step", "supervised_step"]
