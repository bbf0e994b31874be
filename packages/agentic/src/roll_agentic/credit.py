"""Data for credit below the whole trajectory: anchors, step returns, interaction chunks, branch points.

The maths that turns them into advantages belongs to the learners; here they are produced as arrays.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from roll_agentic.episode import Episode
from roll_agentic.errors import AgenticError
from roll_agentic.samples import EpisodeRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCredit:
    """The S steps of a group's episodes, flat.

    Example: two episodes of two steps from the same start have `episodes=[0, 0, 1, 1]`,
    `steps=[0, 1, 0, 1]` and `anchors=[0, 1, 0, 2]`.

    Attributes:
        episodes: int32[S], index of the episode.
        steps: int32[S], number of the turn in it.
        anchors: int32[S], equal for steps taken in the same state, numbered as they appear.
        returns: float64[S], discounted sum of the rewards from this step on.
    """

    episodes: np.ndarray
    steps: np.ndarray
    anchors: np.ndarray
    returns: np.ndarray


def step_returns(rewards: np.ndarray | Sequence[float], *, gamma: float) -> np.ndarray:
    """float64[T], `R_t = r_t + gamma R_(t+1)`.

    Args:
        rewards: T numbers.
        gamma: Discount per step, 0..1.

    Raises:
        AgenticError: The discount is out of range.
    """
    if not 0 <= gamma <= 1:
        raise AgenticError(f"a discount is from 0 to 1, got {gamma}")
    returns = np.array(rewards, dtype=np.float64)
    for step in range(len(returns) - 2, -1, -1):
        returns[step] += gamma * returns[step + 1]
    return returns


def step_credit(
    episodes: Sequence[Episode], *, gamma: float = 0.95, similarity: float | None = None
) -> StepCredit:
    """Anchors and returns of a group of episodes that started in the same state.

    Args:
        episodes: All with a verdict.
        gamma: Discount per step, 0..1.
        similarity: None for states with equal names only; else states whose names agree by at least
            this ratio (0..1) count as the same, a state joining the first anchor that is so similar.

    Raises:
        AgenticError: An episode has no verdict, or an argument is out of range.

    Source: GiGPO, arXiv 2505.10978, anchor states and step returns.
    """
    if similarity is not None and not 0 < similarity <= 1:
        raise AgenticError(f"similarity is above 0 and at most 1, got {similarity}")
    if any(episode.failure is not None for episode in episodes):
        raise AgenticError("credit needs episodes with a verdict; leave failed ones out")
    names: dict[str, int] = {}
    anchors = [_anchor(name, names, similarity) for episode in episodes for name in episode.anchors]
    sizes = [len(episode.turns) for episode in episodes]
    returns = [step_returns(episode.rewards, gamma=gamma) for episode in episodes]
    return StepCredit(
        episodes=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        steps=np.concatenate([np.empty(0, np.int32), *(np.arange(n, dtype=np.int32) for n in sizes)]),
        anchors=np.array(anchors, np.int32),
        returns=np.concatenate([np.empty(0, np.float64), *returns]),
    )


def interaction_chunks(row: EpisodeRow) -> np.ndarray:
    """int32[K, 2], first response token and end of each chunk, from one interaction to the next.

    Bounds count trained tokens only (`row.token_ids[row.response_mask]`). Turns that no environment or
    template token separates are one chunk.

    Args:
        row: By trajectory or with steps concatenated.

    Source: IPA (ROME), arXiv 2512.24873, section 3.2.
    """
    chunks: list[list[int]] = []
    trained, last_end = 0, -1
    for start, end in row.spans.tolist():
        if start == last_end:
            chunks[-1][1] += end - start
        else:
            chunks.append([trained, trained + end - start])
        trained += end - start
        last_end = end
    return np.array(chunks, np.int32).reshape(-1, 2)


def chunk_returns(reward: float, chunks: int, *, gamma: float) -> np.ndarray:
    """float64[K], `G_k = gamma^(K-k) R` for the chunks k = 1..K of a trajectory.

    Args:
        reward: Of the trajectory.
        chunks: K, at least 0.
        gamma: Discount per chunk, 0..1.

    Raises:
        AgenticError: The discount is out of range.

    Source: IPA (ROME), arXiv 2512.24873, the return of an interaction chunk.
    """
    rewards = np.zeros(chunks)
    if chunks:
        rewards[-1] = reward
    return step_returns(rewards, gamma=gamma)


def crucial_chunks(success_rates: Sequence[float], *, min_drop: float) -> list[int]:
    """Numbers k (1, 2, ...) of the chunks that decide: success is much lower when the policy makes them.

    Args:
        success_rates: K+1 shares: success of continuations after the first 0, 1, ..., K chunks.
        min_drop: How much lower, above 0; the paper gives no number.

    Raises:
        AgenticError: The drop is not above 0.

    Source: ROME, arXiv 2512.24873, crucial forks.
    """
    if not min_drop > 0:
        raise AgenticError(f"min_drop is above 0, got {min_drop}")
    rises = np.diff(np.array(success_rates, np.float64))
    return [int(chunk) + 1 for chunk in np.flatnonzero(rises >= min_drop - 1e-9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRule:
    """When a trajectory branches after a tool result, and how often.

    Example: `BranchRule(alpha=0.2, beta=0.4, threshold=0.5, width=2, budget=16, first=8)`.

    Attributes:
        alpha: Probability without any change of entropy.
        beta: What a change of entropy by 1 adds.
        threshold: Branching happens above it.
        width: Continuations of one branching, at least 1.
        budget: Trajectories of a group at most, the first ones included.
        first: Trajectories that start from the beginning, 1..budget.

    Raises:
        AgenticError: A number is out of its range.

    Source: ARPO, arXiv 2507.19849, section 3.1; values are not given there.
    """

    alpha: float
    beta: float
    threshold: float
    width: int
    budget: int
    first: int

    def __post_init__(self) -> None:
        if self.width < 1 or not 1 <= self.first <= self.budget:
            raise AgenticError(
                "a BranchRule needs width of at least 1 and first from 1 to budget, "
                f"got {self.width}, {self.first}, {self.budget}"
            )


def branch_points(entropies: Mapping[int, Sequence[float]], rule: BranchRule) -> list[tuple[int, int, int]]:
    """Where a group's trajectories branch, within the budget.

    Args:
        entropies: By number of the trajectory, the normalised entropy at the start of each of its
            turns: the first is the base, each later one follows a tool result.
        rule: When and how often.

    Returns:
        `(trajectory, turn, continuations)`, the greatest change of entropy first: keep that many turns
        and continue so many times. The last may get fewer continuations than the width.
    """
    wanted = []
    for trajectory, values in entropies.items():
        for turn, value in enumerate(values):
            change = value - values[0]
            if turn and branch_probability(change, rule) > rule.threshold:
                wanted.append((-change, trajectory, turn))
    left = rule.budget - rule.first
    points = []
    for _, trajectory, turn in sorted(wanted):
        count = min(rule.width, left)
        if count < 1:
            break
        points.append((trajectory, turn, count))
        left -= count
    return points


def branch_probability(change: float, rule: BranchRule) -> float:
    """`alpha + beta dH`, not limited to 0..1, as it is only compared with a threshold.

    Args:
        change: Of the normalised entropy.
        rule: Has alpha and beta.
    """
    return rule.alpha + rule.beta * change


def normalised_entropy(top_logprobs: Sequence[Sequence[float]], *, vocabulary: int) -> float:
    """Mean entropy of some tokens' distributions, divided by its largest value, log V.

    Args:
        top_logprobs: For each token the log-probs of its likeliest candidates; the mass that is left
            counts as one more candidate.
        vocabulary: V, at least 2.

    Raises:
        AgenticError: There are no tokens, or the vocabulary is too small.
    """
    if not top_logprobs or vocabulary < 2:
        raise AgenticError(f"entropy needs at least one token and V of at least 2, got V={vocabulary}")
    total = 0.0
    for candidates in top_logprobs:
        probs = [math.exp(logprob) for logprob in candidates]
        rest = 1.0 - sum(probs)
        total -= sum(p * math.log(p) for p in [*probs, rest] if p > 1e-12)
    return total / len(top_logprobs) / math.log(vocabulary)


def _anchor(name: str, names: dict[str, int], similarity: float | None) -> int:
    """The number of a state's anchor; a new one gets the next number."""
    if name in names:
        return names[name]
    if similarity is not None:
        for known, number in names.items():
            matcher = SequenceMatcher(None, known, name, autojunk=False)
            if matcher.quick_ratio() >= similarity and matcher.ratio() >= similarity:
                return number
    return names.setdefault(name, max(names.values(), default=-1) + 1)
