"""Credit of tokens that several trajectories of a group have in common, because one branched off another.

A rollout that branches after uncertain tool results makes trajectories with a common beginning; in hard
attribution its tokens are credited once, with the mean over the trajectories that go through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.advantages.group import grpo
from roll_learners.segments import Segments


class Branches(NamedTuple):
    """Attributes:
    probabilities: [K], of branching off after each tool result.
    branch: bool[K], where it is above the threshold.
    """

    probabilities: Tensor
    branch: Tensor


def arpo_hard(
    rewards: Tensor, groups: Tensor, segments: Segments, nodes: Tensor, *, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """[N], the advantage of each token's sequence, averaged over the sequences that share the token.

    Args:
        rewards: [S], NaN for no verdict.
        groups: int64[S].
        segments: Of the N tokens.
        nodes: int64[N], equal for tokens that are the same token of a common beginning: `prefix_nodes`.
        eps: As in `grpo`.
        ddof: As in `grpo`.

    Source: ARPO, arXiv 2507.19849, section 3.2, hard advantage estimation.
    """
    return hard_credit(segments.spread(grpo(rewards, groups, eps=eps, ddof=ddof)), nodes)


def hard_credit(advantages: Tensor, nodes: Tensor) -> Tensor:
    """[N], the mean of advantages[N] over all tokens with the same node.

    Args:
        advantages: [N].
        nodes: int64[N].
    """
    ids, index = torch.unique(nodes, return_inverse=True)
    sums = advantages.new_zeros(len(ids)).index_add(0, index, advantages)
    counts = advantages.new_zeros(len(ids)).index_add(0, index, torch.ones_like(advantages))
    return (sums / counts)[index]


def prefix_nodes(
    sequences: Sequence[npt.NDArray[np.integer]], groups: Sequence[int]
) -> list[npt.NDArray[np.int64]]:
    """int64[length] for each sequence: equal numbers where two of a group are equal up to this token.

    Args:
        sequences: Whole sequences, with prompts and what environments wrote.
        groups: One id for each.
    """
    children: dict[tuple[int, int], int] = {}
    roots: dict[int, int] = {}
    count = 0
    nodes = []
    for tokens, group in zip(sequences, groups, strict=True):
        parent = roots.setdefault(group, -1 - len(roots))
        path = np.zeros(len(tokens), np.int64)
        for i, token in enumerate(tokens.tolist()):
            parent = children.setdefault((parent, token), count)
            count = max(count, parent + 1)
            path[i] = parent
        nodes.append(path)
    return nodes


def branch_points(entropy_changes: Tensor, *, alpha: float, beta: float, tau: float) -> Branches:
    """Where a trajectory should branch: alpha + beta x the change of entropy above tau.

    Args:
        entropy_changes: [K], normalised change of the token entropy after each tool result.
        alpha: Probability at no change.
        beta: Weight of the change.
        tau: Threshold.

    Source: ARPO, arXiv 2507.19849, eq. 3.
    """
    probabilities = alpha + beta * entropy_changes
    return Branches(probabilities=probabilities, branch=probabilities > tau)
