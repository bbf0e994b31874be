"""From an episode to training samples: the only place where a trajectory becomes one."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from roll_agentic import Episode, EpisodeRow, episode_rows
from roll_agentic.samples import RowKind
from roll_learners.sample import Sample

from roll_launch.samples import SampleError


def samples_from_episode(episode: Episode, *, reward: float, group: int, kind: RowKind) -> list[Sample]:
    """The training samples of an episode: the sampled ids, untouched, with the engine's log-probs.

    Each has the reward of the whole episode, for the group's statistics. In what each turn earned (turns that
    no other token separates count as one) a sample of several turns has the rewards of its own; what the
    episode earned outside of them counts as earned by the last one.

    Args:
        episode: With a verdict.
        reward: Of the episode, after shaping.
        group: Episodes of one start share it.
        kind: What is one sample; see `roll_agentic.episode_rows`.

    Raises:
        SampleError: The episode has no verdict.
    """
    if episode.failure is not None:
        raise SampleError(f"an episode without a verdict is not trained on: {episode.failure.message}")
    states = np.array([state_id(name) for name in episode.anchors], np.int64)
    rows = [row for row in episode_rows(episode.history, kind) if row.response_mask.any()]
    return [_sample(row, states, episode.rewards, reward=reward, group=group) for row in rows]


def state_id(name: str) -> int:
    """A 63-bit number for a state's name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _sample(
    row: EpisodeRow,
    states: npt.NDArray[np.int64],
    rewards: npt.NDArray[np.float64],
    *,
    reward: float,
    group: int,
) -> Sample:
    first = first_of_runs(row.spans)
    earned = np.add.reduceat(rewards[row.turns], first)
    earned[-1] += reward - earned.sum()
    sampled = row.versions[row.response_mask]
    return Sample(
        token_ids=row.token_ids.astype(np.int32),
        response_mask=row.response_mask,
        behavior_logprobs=row.behavior_logprobs.astype(np.float32),
        reward=reward,
        group=group,
        version=int(sampled.min()),
        truncated=row.truncated,
        turn_rewards=earned.astype(np.float32),
        turn_states=states[row.turns][first],
    )


def first_of_runs(spans: npt.NDArray[np.int32] | Sequence[Sequence[int]]) -> npt.NDArray[np.intp]:
    """int[K], which of S turns begin a run of trained tokens; a turn without tokens begins none.

    Args:
        spans: int[S, 2], first token and end of each, in order.
    """
    first: list[int] = []
    before = -1
    for turn, (start, end) in enumerate(np.asarray(spans).reshape(-1, 2).tolist()):
        if end > start:
            if start != before:
                first.append(turn)
            before = end
    return np.array(first, np.intp)
