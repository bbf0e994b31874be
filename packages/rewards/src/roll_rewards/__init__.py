"""Graders that turn a response into a score, with deadlines and honest failures."""

from roll_rewards.conformance import CheckResult, check_grader
from roll_rewards.deadlines import GradeItem, grade_batch, grade_with_deadline
from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.overlong import overlong_penalty
from roll_rewards.registry import GRADERS, make_grader
from roll_rewards.scores import Failure, Score, summarise_scores

__all__ = [
    "GRADERS",
    "CheckResult",
    "Failure",
    "GradeItem",
    "Grader",
    "RewardError",
    "Score",
    "check_grader",
    "grade_batch",
    "grade_with_deadline",
    "make_grader",
    "overlong_penalty",
    "summarise_scores",
]
