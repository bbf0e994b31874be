"""One training step of each kind: samples in, updates done, metrics out."""

from roll_learners.steps.distillation import DistillationTeacher, DistributionSource, distillation_step
from roll_learners.steps.policy import policy_step
from roll_learners.steps.preference import (
    Pair,
    kto_metrics,
    kto_step,
    preference_metrics,
    preference_step,
    reward_model_metrics,
    reward_model_step,
)
from roll_learners.steps.roles import Roles, StateSource, Teacher
from roll_learners.steps.supervised import supervised_step

__all__ = [
    "DistillationTeacher",
    "DistributionSource",
    "Pair",
    "Roles",
    "StateSource",
    "Teacher",
    "distillation_step",
    "kto_metrics",
    "kto_step",
    "policy_step",
    "preference_metrics",
    "preference_step",
    "reward_model_metrics",
    "reward_model_step",
    "supervised_step",
]
