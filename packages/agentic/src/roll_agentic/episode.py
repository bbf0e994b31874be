"""The record of one episode and the metrics of several. Made by `run_episode`, read by training loops."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from roll_agentic.history import History
from roll_agentic.policy import Message, Turn
from roll_agentic.transcript import Transcript


class StopReason(StrEnum):
    """Why an episode ended; a member is equal to its text, `StopReason.DONE == "done"`."""

    DONE = "done"
    """Over by the task's own rules."""
    TRUNCATED = "truncated"
    """Cut off by the environment."""
    MAX_TURNS = "max_turns"
    """Out of turns."""
    MAX_TOKENS = "max_tokens"
    """Out of tokens."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """Out of tool calls."""
    TIME_LIMIT = "time_limit"
    """Out of wall-clock time."""
    CONTEXT = "context"
    """The next prompt leaves no room for a turn in the model's context."""
    LENGTH = "length"
    """A response was cut off, and not carried out."""
    ENV_ERROR = "env_error"
    """No verdict: the environment broke."""
    POLICY_ERROR = "policy_error"
    """No verdict: the policy or its engine broke."""


_CUT_OFF = frozenset(
    {
        StopReason.TRUNCATED,
        StopReason.MAX_TURNS,
        StopReason.MAX_TOKENS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.TIME_LIMIT,
        StopReason.CONTEXT,
        StopReason.LENGTH,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode has no verdict.

    Example: `Failure(kind="deadline", message="Shop.step: no answer within 60 s")`.

    Attributes:
        kind: See `Fault.kind`.
        message: What happened, for a person.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """How an episode went.

    Example: number guessing won in two turns has `status="done"`, responses `8` and `3`,
    `rewards=[0, 1]`, `total_reward` 1.

    Attributes:
        seed: Seed it was started with.
        status: Why it ended.
        turns: What the policy answered.
        rewards: float64[len(turns)], what the environment gave for each; 0 for a turn not carried out.
        messages: All that was said, in order.
        history: The tokens of the turns, in all branches.
        anchors: One for each turn: what names the state that it was taken in, `info["state"]` where the
            environment gives it, else the observation.
        tool_calls: How many calls were carried out, as `info["tool_calls"]` counts them.
        invalid_actions: How many actions the environment called invalid in `info["action_is_valid"]`.
        failure: Why there is no verdict; None when there is one.
        seconds: Wall time.
    """

    seed: int
    status: StopReason
    turns: tuple[Turn, ...]
    rewards: np.ndarray
    messages: tuple[Message, ...]
    history: History
    anchors: tuple[str, ...]
    tool_calls: int
    invalid_actions: int
    failure: Failure | None
    seconds: float

    @property
    def transcript(self) -> Transcript:
        """The tokens of the newest branch: all of them, unless the history was rewritten."""
        return self.history.current

    @property
    def total_reward(self) -> float:
        """Sum of the rewards; NaN without a verdict, so that it cannot be trained as one."""
        return math.nan if self.failure is not None else float(self.rewards.sum())

    @property
    def terminated(self) -> bool:
        """Whether the task ended by its own rules."""
        return self.status is StopReason.DONE

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut off before that."""
        return self.status in _CUT_OFF

    @property
    def success(self) -> bool:
        """Whether the task ended by its own rules with a total reward above 0."""
        return self.terminated and self.total_reward > 0


def summarise_episodes(episodes: Iterable[Episode]) -> dict[str, float]:
    """Metrics of several episodes; those without a verdict are counted and enter no mean.

    Args:
        episodes: Any number of episodes.

    Returns:
        `env/reward/{mean,max,min}`, `env/success_rate`, `env/turns/mean`,
        `env/tool_calls/mean` and `env/invalid_actions/mean` over episodes with a verdict (NaN when
        there is none);
        `env/episodes`, and `env/status/<status>` and `env/failed/<kind>` as counts of those that occurred.
    """
    everything = list(episodes)
    judged = [episode for episode in everything if episode.failure is None]
    rewards = np.array([episode.total_reward for episode in judged] or [math.nan])
    metrics = {
        "env/reward/mean": float(rewards.mean()),
        "env/reward/max": float(rewards.max()),
        "env/reward/min": float(rewards.min()),
        "env/success_rate": float(np.mean([float(episode.success) for episode in judged] or [math.nan])),
        "env/turns/mean": float(np.mean([float(len(e.turns)) for e in judged] or [math.nan])),
        "env/tool_calls/mean": float(np.mean([float(e.tool_calls) for e in judged] or [math.nan])),
        "env/invalid_actions/mean": float(np.mean([float(e.invalid_actions) for e in judged] or [math.nan])),
        "env/episodes": float(len(everything)),
    }
    statuses = Counter(f"env/status/{episode.status}" for episode in everything)
    failures = Counter(f"env/failed/{e.failure.kind}" for e in everything if e.failure is not None)
    return metrics | {name: float(count) for name, count in sorted((statuses + failures).items())}
