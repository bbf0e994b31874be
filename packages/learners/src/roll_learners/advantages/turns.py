"""Returns turn by turn: a discount for each turn, not for each token, and one number for all its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from roll_learners.advantages.group import dr_grpo, grpo
from roll_learners.advantages.returns import discounted_sums
from roll_learners.segments import Turns


def turn_returns(turn_rewards: Tensor, turns: Turns, *, gamma: float = 1.0) -> Tensor:
    """[K], the discounted sum of the rewards from each turn to the end of its sequence.

    Args:
        turn_rewards: [K].
        turns: Of the K turns.
        gamma: Discount per turn, 0 to 1.
    """
    return discounted_sums(turn_rewards, turns.sequences, gamma)


def turn_reinforce(turn_rewards: Tensor, turns: Turns, *, gamma: float = 1.0) -> Tensor:
    """[N], each token the return of its turn; with all reward at the end gamma^(turns after it) x reward.

    Args:
        turn_rewards: [K].
        turns: Of the N tokens.
        gamma: Discount per turn, 0 to 1.

    Source: IPA (ROME), arXiv 2512.24873, section 3.2, the return of an interaction chunk.
    """
    return turns.tokens.spread(turn_returns(turn_rewards, turns, gamma=gamma))


def step_reinforce(
    turn_rewards: Tensor,
    turns: Turns,
    groups: Tensor,
    *,
    gamma: float = 1.0,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """[N], each token the return of its turn, normalised over all turns of its group.

    Args:
        turn_rewards: [K].
        turns: Of the N tokens.
        groups: int64[S].
        gamma: Discount per turn, 0 to 1.
        eps: As in `grpo`.
        ddof: As in `grpo`.
    """
    returns = turn_returns(turn_rewards, turns, gamma=gamma)
    return turns.tokens.spread(grpo(returns, groups[turns.sequences.ids], eps=eps, ddof=ddof))


def gigpo(
    rewards: Tensor,
    groups: Tensor,
    turn_rewards: Tensor,
    turn_states: Tensor,
    turns: Turns,
    *,
    gamma: float = 1.0,
    omega: float = 1.0,
    eps: float = 1e-6,
    ddof: int = 1,
    by_deviation: bool = True,
) -> Tensor:
    """[N], the episode's advantage in its group + omega x the turn's among turns from the same state.

    A turn from a state that no other turn of the group starts from has no part of its own.

    Args:
        rewards: [S], the undiscounted sum of each trajectory, NaN for no verdict.
        groups: int64[S], one task and start each.
        turn_rewards: [K].
        turn_states: int64[K], equal numbers for equal states.
        turns: Of the N tokens.
        gamma: Discount per turn of the return of a turn, 0 to 1.
        omega: Weight of the turn's part.
        eps: As in `grpo`.
        ddof: As in `grpo`.
        by_deviation: Divide both parts by the deviation of their group; else by 1.

    Source: GiGPO, arXiv 2505.10978, eq. 3 to 8.
    """
    owners = groups[turns.sequences.ids]
    anchors = torch.unique(torch.stack([owners, turn_states], 1), dim=0, return_inverse=True)[1]
    returns = turn_returns(turn_rewards, turns, gamma=gamma)
    episode = _relative(rewards, groups, eps, ddof, by_deviation)
    step = _relative(returns, anchors, eps, ddof, by_deviation)
    return turns.tokens.spread(turns.sequences.spread(episode) + omega * step)


def crucial_chunks(success_rates: Sequence[float], *, min_drop: float) -> list[int]:
    """Numbers, from 1, of the expert's chunks without which success is much less likely.

    Args:
        success_rates: Of rollouts that go on after the first 0, 1, ... K chunks of the expert.
        min_drop: Chunk f is crucial if the rate after f chunks is at least this much above that after f - 1;
            the paper gives no number.

    Source: ROME, arXiv 2512.24873, section 3.3.
    """
    pairs = pairwise(success_rates)
    return [f for f, (before, after) in enumerate(pairs, start=1) if after - before >= min_drop]


def _relative(values: Tensor, groups: Tensor, eps: float, ddof: int, by_deviation: bool) -> Tensor:
    return grpo(values, groups, eps=eps, ddof=ddof) if by_deviation else dr_grpo(values, groups)
