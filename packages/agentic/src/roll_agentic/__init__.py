"""Environments, tools, episodes and token-exact transcripts for multi-turn policies."""

from roll_agentic.chat import ChatTokenizer, HuggingFaceChat, PlainText, first_ids, following_ids
from roll_agentic.chat_policy import ChatPolicy, ChatPolicyConfig, Sampled, TokenEngine, turn_seed
from roll_agentic.conformance import CheckResult, check_environment
from roll_agentic.credit import (
    BranchRule,
    StepCredit,
    branch_points,
    branch_probability,
    chunk_returns,
    crucial_chunks,
    interaction_chunks,
    normalised_entropy,
    step_credit,
    step_returns,
)
from roll_agentic.drift import SCENARIOS, Drift, drift_table, template_drift
from roll_agentic.environment import Environment
from roll_agentic.environment_pool import EnvironmentPool, InlineEnvironment, Lease
from roll_agentic.environments import NumberGuessing
from roll_agentic.episode import Episode, Failure, StopReason, summarise_episodes
from roll_agentic.errors import AgenticError, EnvironmentFault, TranscriptError
from roll_agentic.evaluation import episode_record, evaluate
from roll_agentic.game import Game, Seat, SoloGame, Table, run_game
from roll_agentic.groups import EpisodeGroup, GroupPlan, run_groups
from roll_agentic.history import Branch, History
from roll_agentic.lint import AgentRun, LintReport, lint_environment
from roll_agentic.overflow import Summariser, fit_history, fit_observation
from roll_agentic.players import EndpointPolicy, PersonPolicy, RandomPolicy, ScriptedPolicy
from roll_agentic.policy import EpisodeState, Message, Policy, Turn
from roll_agentic.prefix import Prefix, SequentialRollback, parallel_forks
from roll_agentic.process_environment import ProcessEnvironment
from roll_agentic.registry import (
    ADAPTERS,
    ENVIRONMENTS,
    check_options,
    environment_names,
    make,
    option_names,
)
from roll_agentic.runner import run_episode
from roll_agentic.samples import EpisodeRow, episode_rows, row_count
from roll_agentic.seeds import episode_seed
from roll_agentic.segment import Segment
from roll_agentic.stop import StopCut, cut_at_stop
from roll_agentic.transcript import TrainingRow, Transcript

__all__ = [
    "ADAPTERS",
    "ENVIRONMENTS",
    "SCENARIOS",
    "AgentRun",
    "AgenticError",
    "Branch",
    "BranchRule",
    "ChatPolicy",
    "ChatPolicyConfig",
    "ChatTokenizer",
    "CheckResult",
    "Drift",
    "EndpointPolicy",
    "Environment",
    "EnvironmentFault",
    "EnvironmentPool",
    "Episode",
    "EpisodeGroup",
    "EpisodeRow",
    "EpisodeState",
    "Failure",
    "Game",
    "GroupPlan",
    "History",
    "HuggingFaceChat",
    "InlineEnvironment",
    "Lease",
    "LintReport",
    "Message",
    "NumberGuessing",
    "PersonPolicy",
    "PlainText",
    "Policy",
    "Prefix",
    "ProcessEnvironment",
    "RandomPolicy",
    "Sampled",
    "ScriptedPolicy",
    "Seat",
    "Segment",
    "SequentialRollback",
    "SoloGame",
    "StepCredit",
    "StopCut",
    "StopReason",
    "Summariser",
    "Table",
    "TokenEngine",
    "TrainingRow",
    "Transcript",
    "TranscriptError",
    "Turn",
    "branch_points",
    "branch_probability",
    "check_environment",
    "check_options",
    "chunk_returns",
    "crucial_chunks",
    "cut_at_stop",
    "drift_table",
    "environment_names",
    "episode_record",
    "episode_rows",
    "episode_seed",
    "evaluate",
    "first_ids",
    "fit_history",
    "fit_observation",
    "following_ids",
    "interaction_chunks",
    "lint_environment",
    "make",
    "normalised_entropy",
    "option_names",
    "parallel_forks",
    "row_count",
    "run_episode",
    "run_game",
    "run_groups",
    "step_credit",
    "step_returns",
    "summarise_episodes",
    "template_drift",
    "turn_seed",
]
