"""Metrics of a batch of episodes that the driver can tell from what it holds of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from roll_launch.episode_roles import PlayedEpisode


def episode_metrics(episodes: Sequence[PlayedEpisode]) -> dict[str, float]:
    """`env/...` of episodes with a verdict, at least one.

    `env/reward/{mean,max,min}`, `env/success_rate`, `env/turns/{mean,max}`, `env/context/mean` (tokens, those
    that were not sampled included), `env/tool_calls/mean`, `env/invalid_actions/mean`,
    `env/seconds/{mean,max}` (of environments, without engines), `env/engine_seconds/mean`, and the share of
    each reason to end as
    `env/status/REASON`.
    """

    def column(name: str) -> np.ndarray:
        return np.array([float(getattr(episode, name)) for episode in episodes])

    rewards, turns, seconds = column("reward"), column("turns"), column("environment_s")
    metrics = {
        "env/reward/mean": rewards.mean(),
        "env/reward/max": rewards.max(),
        "env/reward/min": rewards.min(),
        "env/success_rate": column("success").mean(),
        "env/turns/mean": turns.mean(),
        "env/turns/max": turns.max(),
        "env/context/mean": column("context").mean(),
        "env/tool_calls/mean": column("tool_calls").mean(),
        "env/invalid_actions/mean": column("invalid_actions").mean(),
        "env/seconds/mean": seconds.mean(),
        "env/seconds/max": seconds.max(),
        "env/engine_seconds/mean": column("engine_s").mean(),
    }
    reasons = Counter(episode.status for episode in episodes)
    metrics |= {f"env/status/{reason}": count / len(episodes) for reason, count in sorted(reasons.items())}
    return {name: float(value) for name, value in metrics.items()}
