"""Environment workers as the driver sees them, and what is said between them.

As in `roles.py` a `Handle` stands for data that stays with the workers: here the whole `Episode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roll_rollout import SamplingParams

from roll_launch.config import EnvironmentConfig, EpisodesConfig
from roll_launch.roles import Actor, Handle, Pulse

REPLICA, ENGINE = "replica", "engine"
"""Kinds of failures that are the generating side's: its process is gone, or it refused a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What an environment worker is built from.

    Attributes:
        tokenizer: Of the policy.
        environments: All that its episodes may name.
        episodes: How they are played.
        sampling: Of one turn.
        max_context: Tokens of a prompt and the turn after it.
        turn_deadline_s: Seconds for one turn of the policy.
    """

    tokenizer: Path
    environments: tuple[EnvironmentConfig, ...]
    episodes: EpisodesConfig
    sampling: SamplingParams
    max_context: int
    turn_deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest:
    """One episode to play: EpisodeRequest(id="17", environment="frozen_lake", start=2046, seed=77).

    Attributes:
        id: Names it in `abort`.
        environment: Its title.
        start: Given to the environment's `reset`; equal in a group.
        seed: Of the sampling.
    """

    id: str
    environment: str
    start: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """What the driver holds of an episode.

    PlayedEpisode(episode=<handle>, status="done", reward=1.0, success=True, versions=((3, 9),), ...)

    Attributes:
        episode: The whole of it.
        status: Why it ended.
        reward: Sum of the rewards; NaN without a verdict.
        success: Over by the task's own rules, with a reward above 0.
        versions: Pairs (policy version, sampled tokens) in token order.
        context: Tokens in all branches, sampled ones included.
        samples: Training samples that it makes.
        turns: Of the policy.
        tool_calls: That were carried out.
        invalid_actions: As the environment counts them.
        engine_s: Seconds in which the engine was waited for.
        environment_s: The other seconds of the episode.
        failure: Kind and message of why there is no verdict, or None.
    """

    episode: Handle
    status: str
    reward: float
    success: bool
    versions: tuple[tuple[int, int], ...]
    context: int
    samples: int
    turns: int
    tool_calls: int
    invalid_actions: int
    engine_s: float
    environment_s: float
    failure: tuple[str, str] | None = None

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(tokens for _, tokens in self.versions)

    @property
    def oldest_version(self) -> int:
        """The oldest version that sampled one of them."""
        return min(version for version, _ in self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One line of a rollouts file, before the worker that writes it adds the transcript."""

    step: int
    group: int
    member: int
    seed: int
    environment: str
    start: int
    played: PlayedEpisode
    reward: float


class EnvironmentWorker(Protocol):
    """Plays episodes against rollout replicas, many at once, and writes them down for people."""

    async def play(self, request: EpisodeRequest, actor: Actor) -> PlayedEpisode:
        """Plays one episode, all its turns on one replica.

        An environment or engine that fails is an episode with a failure, never an exception.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Ends an episode early; its `play` raises."""
        ...

    async def record(self, path: Path, records: Sequence[EpisodeRecord], *, offset: int) -> int:
        """Writes episodes into a JSONL file; see `RewardWorker.record`."""
        ...

    async def pulse(self) -> Pulse:
        """Answers at once, whatever it is doing."""
        ...
