"""Metrics of a batch of rollouts that the driver can tell from scores and lengths alone."""

import numpy as np
from roll_rewards import summarise_scores

from roll_launch.pipelines.collection import RolloutBatch, members_of


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Scores, truncation and failures of a batch, by the names people search for."""
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
    metrics |= {f"rollout/failed/{kind}": float(count) for kind, count in batch.failures.items()}
    metrics |= {f"rollout/dropped/{reason}": float(count) for reason, count in batch.dropped.items()}
    return metrics
