"""Metrics of a batch of rollouts that the driver can tell from scores and lengths alone."""

import math
from collections.abc import Sequence

import numpy as np
from roll_rewards import summarise_scores

from roll_launch.pipelines.collection import RolloutBatch, members_of


def rollout_metrics(batch: RolloutBatch, rewards: Sequence[float]) -> dict[str, float]:
    """Scores, truncation and failures of a batch, by the names people search for.

    Args:
        batch: A step's groups.
        rewards: Of all its members in order, after shaping.
    """
    members = members_of(batch)
    scores = np.array([member.graded.value for member in members], dtype=np.float64)
    truncated = np.array([member.generated.truncated for member in members], dtype=np.float64)
    metrics = {
        "critic/score/mean": float(scores.mean()),
        "critic/score/max": float(scores.max()),
        "critic/score/min": float(scores.min()),
        "response_length/clip_ratio": float(truncated.mean()),
    }
    metrics |= summarise_scores(member.graded.score for member in members)
    metrics |= _length_metrics(batch, rewards)
    failed = sum(batch.failures.values())
    metrics["rollout/failure_rate"] = failed / max(1, failed + len(members))
    metrics |= {f"rollout/failed/{kind}": float(count) for kind, count in batch.failures.items()}
    metrics |= {f"rollout/dropped/{reason}": float(count) for reason, count in batch.dropped.items()}
    return metrics


def domain_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Mean score of each domain of a mixture and its share of the samples; {} without domains."""
    scores: dict[str, list[float]] = {}
    for group in batch.groups:
        own = scores.setdefault(group.prompt.row.domain, [])
        own += [member.graded.value for member in group.members]
    total = sum(map(len, scores.values()))
    metrics: dict[str, float] = {}
    for domain, own in sorted(scores.items()):
        if domain and own:
            metrics[f"critic/score/{domain}/mean"] = sum(own) / len(own)
            metrics[f"rollout/share/{domain}"] = len(own) / total
    return metrics


def _length_metrics(batch: RolloutBatch, rewards: Sequence[float]) -> dict[str, float]:
    """How reward and length go together among responses to the same prompt.

    `critic/reward_length_correlation`: Pearson's, of the deviations from the group's means, over the groups
    whose rewards differ: the ones that train.
    `critic/reward_length_slope`: reward a token more, the least-squares slope of the same deviations, over
    all groups.

    Prompts do not enter: hard ones may have long and wrong responses. What no spread defines is left out.
    """
    joint = length_squares = trained_length_squares = reward_squares = 0.0
    first = 0
    for group in batch.groups:
        own = np.array(rewards[first : first + len(group.members)], dtype=np.float64)
        lengths = np.array([member.generated.tokens for member in group.members], dtype=np.float64)
        first += len(group.members)
        if len(own) < 2:
            continue
        lengths -= lengths.mean()
        length_squares += float(lengths @ lengths)
        # The mean of equal rewards may differ from them in the last bit.
        if own.max() > own.min():
            own -= own.mean()
            joint += float(lengths @ own)
            trained_length_squares += float(lengths @ lengths)
            reward_squares += float(own @ own)
    metrics: dict[str, float] = {}
    if length_squares > 0:
        metrics["critic/reward_length_slope"] = joint / length_squares
    if trained_length_squares > 0:
        metrics["critic/reward_length_correlation"] = joint / math.sqrt(
            trained_length_squares * reward_squares
        )
    return metrics
