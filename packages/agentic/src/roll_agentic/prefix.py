"""Beginnings of episodes to be continued otherwise: forks by replayed actions or from a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass

from roll_agentic.environment import Info
from roll_agentic.episode import Episode
from roll_agentic.errors import AgenticError, EnvironmentFault
from roll_agentic.policy import Message, Turn
from roll_agentic.segment import Segment
from roll_agentic.session import EnvironmentSession


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """The first turns of an episode, with the answers to them.

    Example: `Prefix.of(episode, turns=2)` keeps two turns and is continued with the third.

    Attributes:
        seed: Of the episode.
        turns: The turns that are kept.
        rewards: The environment's reward for each.
        messages: What was said, from the first observation to the answer to the last of these turns.
        anchors: Names of the states they were taken in.
        segments: Their tokens, in order.
        info: What the environment returned last; only for a prefix whose environment is not played again.
    """

    seed: int
    turns: tuple[Turn, ...]
    rewards: tuple[float, ...]
    messages: tuple[Message, ...]
    anchors: tuple[str, ...]
    segments: tuple[Segment, ...]
    info: Info | None = None

    @classmethod
    def of(cls, episode: Episode, *, turns: int, snapshot_info: Info | None = None) -> "Prefix":
        """The first turns of an episode.

        Args:
            episode: Its history was not rewritten within these turns.
            turns: How many, from 0 to one less than the episode has.
            snapshot_info: Given when the continuation gets an environment that is already in the state
                after these turns (say, a deep copy): what that environment returned last. None when it is
                to be reset and the actions played again.

        Raises:
            AgenticError: There are not so many turns, or the history was rewritten within them.
        """
        if not 0 <= turns < len(episode.turns):
            raise AgenticError(f"a fork keeps 0 to {len(episode.turns) - 1} turns, got {turns}")
        if any(turn.branch for turn in episode.turns[:turns]):
            raise AgenticError(
                f"history was rewritten within the first {turns} turns: no fork is possible there"
            )
        return cls(
            seed=episode.seed,
            turns=episode.turns[:turns],
            rewards=tuple(float(reward) for reward in episode.rewards[:turns]),
            messages=episode.messages[: 2 * turns + 1],
            anchors=episode.anchors[:turns],
            segments=tuple(segment for turn in episode.turns[:turns] for segment in turn.segments),
            info=snapshot_info,
        )


async def replay(session: EnvironmentSession, prefix: Prefix, *, within_s: float) -> tuple[Info, Info]:
    """Reset an environment and play the prefix's actions again.

    Args:
        session: Of a fresh environment.
        prefix: What is played.
        within_s: Seconds for each call.

    Returns:
        The info of the reset, and that of the last answer.

    Raises:
        EnvironmentFault: The environment broke, or answered otherwise than before (kind `diverged`).
    """
    observation, first_info = await session.reset(seed=prefix.seed, within_s=within_s)
    info = first_info
    _compare(observation, prefix.messages[0].text, 0)
    for number, turn in enumerate(prefix.turns):
        answer = await session.step(turn.response, within_s=within_s)
        info = answer.info
        _compare(answer.observation, prefix.messages[2 * number + 2].text, number + 1)
        if answer.reward != prefix.rewards[number] or answer.terminated or answer.truncated:
            raise EnvironmentFault(
                "diverged",
                f"played again, turn {number} got {answer.reward:g}, before {prefix.rewards[number]:g}",
            )
    return first_info, info


def parallel_forks(turns: int, *, count: int, at: Sequence[float] = ()) -> list[int]:
    """Where to fork a trajectory in several places at once (parallelised initialisation).

    Args:
        turns: Turns of the trajectory, at least 1.
        count: How many forks at most, at least 1.
        at: Positions as shares of the trajectory, 0..1 each (say, random ones); none for even spacing.

    Returns:
        Numbers of turns to keep, rising, each from 0 to `turns` - 1; no number twice.

    Raises:
        AgenticError: A number is out of its range.

    Source: ROME, arXiv 2512.24873, chunk-level initialised resampling.
    """
    if turns < 1 or count < 1 or not all(0 <= share <= 1 for share in at):
        raise AgenticError(f"forks need turns and count of at least 1, shares in 0..1; got {turns}, {count}")
    shares = list(at)[:count] if at else [number / count for number in range(count)]
    return sorted({min(int(share * turns), turns - 1) for share in shares})


class SequentialRollback:
    """Where to fork next: first before the last turn, further back as the continuations succeed.

    Args:
        turns: Turns of the trajectory, at least 1.
        success: Share of successful continuations with which a fork counts as learned, above 0.

    Raises:
        AgenticError: An argument is out of its range.

    Source: ROME, arXiv 2512.24873, sequential rollback.
    """

    def __init__(self, turns: int, *, success: float = 0.5) -> None:
        if turns < 1 or not 0 < success <= 1:
            raise AgenticError(
                f"a rollback needs turns of at least 1 and success in (0, 1], got {turns} and {success}"
            )
        self._fork = turns - 1
        self._success = success

    @property
    def fork(self) -> int:
        """How many turns to keep; 0 when everything after the first observation is played anew."""
        return self._fork

    def report(self, success_rate: float) -> int:
        """Tell how the continuations of the current fork did; returns the next fork.

        Args:
            success_rate: Share that succeeded, 0..1.
        """
        if success_rate >= self._success:
            self._fork = max(self._fork - 1, 0)
        return self._fork


def _compare(now: str, before: str, turn: int) -> None:
    if now != before:
        raise EnvironmentFault(
            "diverged", f"played again, observation {turn} is {now!r:.80}, before {before!r:.80}"
        )
