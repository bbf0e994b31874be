"""What a whole training batch says about each of its tokens, before the batch is split.

Rewards become token rewards, these advantages; teachers, attention and the agreement of critics then have
their say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roll_learners.advantages.ensemble import disagreement, where_critics_agree, where_critics_differ
from roll_learners.advantages.gae import Gae
from roll_learners.advantages.group import whiten
from roll_learners.advantages.returns import reinforce, token_rewards
from roll_learners.advantages.rhythm import RhythmSignals, rhythm_weights, scale_advantages
from roll_learners.advantages.shared_prefix import prefix_nodes
from roll_learners.algorithm import Algorithm
from roll_learners.attention import AttentionSource
from roll_learners.errors import LearnerError
from roll_learners.registry import ADVANTAGES, KL_ESTIMATORS
from roll_learners.sample import Sample
from roll_learners.segments import Segments
from roll_learners.steps.columns import TokenColumn, flat, segments_of, turns_of
from roll_learners.steps.roles import Teacher


class TokenRewards(NamedTuple):
    """Attributes:
    rewards: float64[N].
    kl: [N], the estimate that was charged, or None.
    """

    rewards: Tensor
    kl: Tensor | None


class Credit(NamedTuple):
    """Attributes:
    advantages: float64[N].
    returns: [N], targets of critics, or None without them.
    """

    advantages: Tensor
    returns: Tensor | None


def reward_tokens(
    samples: Sequence[Sample],
    algorithm: Algorithm,
    *,
    old: TokenColumn | None,
    ref: TokenColumn | None,
    coef: float,
) -> TokenRewards:
    """Each score on the last token of its turn, less coef x KL where the algorithm charges it.

    Args:
        samples: S samples with N trained tokens.
        algorithm: Clip and KL.
        old: The learner's log-probs; needed for a KL.
        ref: The reference's log-probs; needed for a KL.
        coef: Weight of the KL.
    """
    segments = segments_of(samples)
    kl = None
    if algorithm.kl.placement == "reward" and old is not None and ref is not None:
        estimate = KL_ESTIMATORS.bind(algorithm.kl.estimator, {})
        kl = estimate(logprobs=flat(old, samples), ref_logprobs=flat(ref, samples))
    turns = turns_of(samples, segments)
    scores = []
    for sample, count in zip(samples, turns.sequences.lengths.tolist(), strict=True):
        earned = sample.turn_rewards
        scores.append(np.append(np.zeros(count - 1), sample.reward) if earned is None else earned)
    earned_turns = torch.from_numpy(np.concatenate(scores)).double()
    if algorithm.reward_clip is not None:
        earned_turns = earned_turns.clamp(-algorithm.reward_clip, algorithm.reward_clip)
    return TokenRewards(rewards=token_rewards(earned_turns, turns.tokens, kl=kl, coef=coef), kl=kl)


def credit(
    samples: Sequence[Sample], algorithm: Algorithm, rewards: Tensor, *, values: Tensor | None = None
) -> Credit:
    """The estimator's advantages, one number a token.

    Args:
        samples: S samples with N trained tokens.
        algorithm: Names the estimator.
        rewards: float64[N], of tokens.
        values: [N], the critic's, or None.
    """
    segments = segments_of(samples)
    turns = turns_of(samples, segments)
    estimator = ADVANTAGES.bind(algorithm.advantage, algorithm.parameters())
    states, nodes = None, None
    if "turn_states" in estimator.inputs:
        states = _turn_states(samples)
    if "nodes" in estimator.inputs:
        paths = prefix_nodes([s.token_ids for s in samples], [s.group for s in samples])
        nodes = torch.from_numpy(
            np.concatenate([path[s.response_mask] for path, s in zip(paths, samples, strict=True)])
        )
    result: Tensor | Gae = estimator(
        rewards=segments.sums(rewards),
        groups=torch.tensor([sample.group for sample in samples]),
        token_rewards=rewards,
        segments=segments,
        values=values,
        turns=turns,
        turn_rewards=turns.tokens.sums(rewards),
        turn_states=states,
        nodes=nodes,
        baselines=torch.tensor([sample.baseline for sample in samples], dtype=torch.float64),
    )
    if isinstance(result, Gae):
        return Credit(
            advantages=result.advantages, returns=critic_returns(rewards, result, algorithm, segments)
        )
    if len(result) == len(samples):  # one a sample; with one token each it is the same
        result = segments.spread(result)
    return Credit(advantages=result, returns=None)


def critic_returns(rewards: Tensor, estimate: Gae | None, algorithm: Algorithm, segments: Segments) -> Tensor:
    """[N], what critics learn under the algorithm's rule; an estimate is needed unless it is Monte Carlo."""
    if algorithm.critic.targets == "monte_carlo" or estimate is None:
        return reinforce(rewards, segments, gamma=algorithm.gamma)
    return estimate.returns


def teacher_penalties(teachers: Sequence[Teacher], samples: Sequence[Sample], old: TokenColumn) -> Tensor:
    """[N], the sum over teachers of coef x KL estimate, of the samples that each teaches."""
    student = flat(old, samples)
    total = torch.zeros_like(student)
    for teacher in teachers:
        taught = [i for i, s in enumerate(samples) if teacher.tags is None or s.tag in teacher.tags]
        if not taught:
            continue
        column: TokenColumn = [np.zeros(len(sample.token_ids)) for sample in samples]
        for i, scored in zip(taught, teacher.source.logprobs([samples[i] for i in taught]), strict=True):
            column[i] = scored
        chosen = torch.from_numpy(
            np.repeat(np.isin(np.arange(len(samples)), taught), [s.response_tokens for s in samples])
        )
        estimate: Tensor = KL_ESTIMATORS.bind(teacher.estimator, {})(
            logprobs=student, ref_logprobs=flat(column, samples)
        )
        total = total + torch.where(chosen, teacher.coef * estimate, 0.0)
    return total


def finished(
    advantages: Tensor,
    samples: Sequence[Sample],
    algorithm: Algorithm,
    *,
    attention: AttentionSource | None,
    critic_values: Tensor | None,
) -> Tensor:
    """[N], advantages whitened, clipped, weighted by attention, and 0 where critics agree most.

    Args:
        advantages: [N].
        samples: S samples.
        algorithm: What of this is done.
        attention: Supplies the signals of the algorithm's rhythm.
        critic_values: [M, N], of each critic, or None.
    """
    if algorithm.whiten:
        advantages = whiten(advantages)
    if algorithm.advantage_clip is not None:
        advantages = advantages.clamp(-algorithm.advantage_clip, algorithm.advantage_clip)
    if algorithm.rhythm is not None and attention is not None:
        signals = attention.signals(samples, algorithm.rhythm)
        weights = torch.cat(
            [
                rhythm_weights(
                    RhythmSignals(*(torch.from_numpy(c[s.response_mask]).double() for c in columns)),
                    algorithm.rhythm,
                )
                for columns, s in zip(signals, samples, strict=True)
            ]
        )
        advantages = scale_advantages(advantages, weights, both_signs=algorithm.rhythm.both_signs)
    if critic_values is not None and algorithm.critic.agreement:
        differ = where_critics_differ(disagreement(critic_values), algorithm.critic.agreement)
        advantages = torch.where(differ, advantages, 0.0)
    return advantages


def entropy_weights(algorithm: Algorithm, critic_values: Tensor | None) -> Tensor | None:
    """[N], 0 where critics differ most and 1 elsewhere; None if the algorithm looks at no difference."""
    if critic_values is None or not algorithm.critic.disagreement or not algorithm.entropy_coef:
        return None
    return where_critics_agree(disagreement(critic_values), algorithm.critic.disagreement).double()


def _turn_states(samples: Sequence[Sample]) -> Tensor:
    known = [sample.turn_states for sample in samples if sample.turn_states is not None]
    if len(known) < len(samples):
        raise LearnerError(
            f"the advantage compares turns from the same state, but {len(samples) - len(known)} of "
            f"{len(samples)} samples have no turn_states"
        )
    return torch.from_numpy(np.concatenate(known))
