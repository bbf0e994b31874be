"""Graders that turn a response into a score, with deadlines and honest failures."""

from roll_rewards.conformance import CheckResult, check_grader
from roll_rewards.cosine import cosine_length_reward
from roll_rewards.deadlines import GradeItem, grade_batch, grade_with_deadline
from roll_rewards.errors import RewardError
from roll_rewards.extraction import extract_answer, visible_part
from roll_rewards.grader import Grader
from roll_rewards.graders import Component, Weighted
from roll_rewards.judging.endpoint import ChatEndpoint, Written
from roll_rewards.lint import LintReport, lint_grader
from roll_rewards.overlong import overlong_penalty
from roll_rewards.registry import GRADERS, make_grader
from roll_rewards.reward_models.serving import ConversationQueue, ConversationScorer
from roll_rewards.scores import Failure, Score, summarise_scores

__all__ = [
    "GRADERS",
    "ChatEndpoint",
    "CheckResult",
    "Component",
    "ConversationQueue",
    "ConversationScorer",
    "Failure",
    "GradeItem",
    "Grader",
    "LintReport",
    "RewardError",
    "Score",
    "Weighted",
    "Written",
    "check_grader",
    "cosine_length_reward",
    "extract_answer",
    "grade_batch",
    "grade_with_deadline",
    "lint_grader",
    "make_grader",
    "overlong_penalty",
    "summarise_scores",
    "visible_part",
]
