"""Environments, episodes and token-exact transcripts for multi-turn policies."""

from roll_agentic.conformance import CheckResult, check_environment
from roll_agentic.environment import Environment
from roll_agentic.environments import NumberGuessing
from roll_agentic.episode import Episode, Failure, summarise_episodes
from roll_agentic.errors import AgenticError, TranscriptError
from roll_agentic.policy import EpisodeState, Message, Policy, Turn
from roll_agentic.registry import ENVIRONMENTS, environment_names, make
from roll_agentic.runner import run_episode
from roll_agentic.seeds import episode_seed
from roll_agentic.segment import Segment
from roll_agentic.stop import StopCut, cut_at_stop
from roll_agentic.transcript import TrainingRow, Transcript

__all__ = [
    "ENVIRONMENTS",
    "AgenticError",
    "CheckResult",
    "Environment",
    "Episode",
    "EpisodeState",
    "Failure",
    "Message",
    "NumberGuessing",
    "Policy",
    "Segment",
    "StopCut",
    "TrainingRow",
    "Transcript",
    "TranscriptError",
    "Turn",
    "check_environment",
    "cut_at_stop",
    "environment_names",
    "episode_seed",
    "make",
    "run_episode",
    "summarise_episodes",
]
