"""How many groups to send out beyond a batch, from a measured tail. For tail rounds with elastic devices."""

import numpy as np

from roll_scheduler.simulator.bounds import work_seconds
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.setting import Setting

__all__ = ["extra_share", "measured_extra_share"]

LATE = 0.5
"""Part of the rollout's work after which the last of the long completions has probably started."""

MOST = 0.25


def extra_share(longest: np.ndarray, *, rollout_s: float, train_s: float, token_s: float) -> float:
    """Share of a batch to send out beyond it, 0 to 0.25: of groups that outlast the rest of the step.

    All devices busy, a step takes `rollout_s + train_s`. A completion that starts when half of the rollout's
    work is done has `rollout_s / 2 + train_s` left of that. Groups with a longer one are better put off to a
    round of their own than waited for.

    Args:
        longest: Integers [P]: tokens of the longest completion of each group.
        rollout_s: Seconds of a batch's tokens at full batches on all devices, >= 0.
        train_s: Seconds of its training on all devices, >= 0.
        token_s: Seconds of an iteration in the tail, > 0.

    Raises:
        SimulationError: If there is no group or a number is out of its range.
    """
    longest = np.asarray(longest)
    if longest.size == 0 or rollout_s < 0 or train_s < 0 or not token_s > 0:
        raise SimulationError(
            f"extra_share: got {longest.size} groups, rollout_s={rollout_s!r}, train_s={train_s!r}, "
            f"token_s={token_s!r}, allowed are >= 1 group, seconds >= 0 and token_s > 0"
        )
    left_s = (1 - LATE) * rollout_s + train_s
    return min(MOST, float((longest * token_s > left_s).mean()))


def measured_extra_share(setting: Setting) -> float:
    """`extra_share` of a setting, from the lengths of its first batch: what a live run knows after a step."""
    batch = setting.workload.batch(0, setting.groups_per_batch, setting.group_size)
    engine = setting.engines[0]
    return extra_share(
        batch.max(axis=1),
        rollout_s=work_seconds(float(batch.sum()), setting.engines),
        train_s=setting.trainer.sample_s * batch.size / setting.devices,
        token_s=engine.iteration_s(engine.slots / 2),
    )
