"""Rewards that rise because responses grow, and for no other reason."""

import math
from collections.abc import Mapping

from roll_launch.alarms.detector import Memory, Reading, mean, number, with_step
from roll_launch.config import LengthRewardConfig

SURE = 2.0
"""Standard errors by which the reward must have risen, so that noise between the halves is no rise."""

FEWEST_STEPS = 4

METRICS = (
    "critic/rewards/mean",
    "response_length/mean",
    "critic/reward_length_correlation",
    "critic/reward_length_slope",
)


class LengthReward:
    """Over a window of steps reward and length rise together, and length alone explains the rise.

    Within a group, where the prompt is the same, the slope says what a token more earns. If the reward rose
    by about slope x growth of the mean length, and the correlation within groups is high, then the policy has
    learned to be longer; whatever else it learned earned nothing. All of it is seen in the batches that are
    trained on: no response is read.

    It sees a grader that pays for length, and a policy that pads. It does not see

    * padding that earns nothing within a group (all members equally long), because no batch can show it;
    * growth that is slower than `growth` in half a window;
    * whether the longer responses are better: where a task needs longer reasoning, right answers are the
      longer ones and this alarm says so all the same. In most such runs wrong answers are the longer ones
      of their group, and it is silent. Read rollouts/ before changing anything.
    """

    name = "length_reward"
    steps = 1
    advice = (
        "Read the longest responses in rollouts/: if they are padded, penalise length (rewards.overlong) or "
        "mend the grader; if they reason better, all is well."
    )

    def __init__(self, config: LengthRewardConfig) -> None:
        self._config = config
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """None until half a window is there, and where no group of its newer half has a spread."""
        reward, length, *within = (number(metrics, name) for name in METRICS)
        if reward is None or length is None:
            return None
        window = self._config.window
        self.memory = with_step(self.memory, reward, length, *within, window=window)
        steps = len(self.memory)
        if steps < max(FEWEST_STEPS, window // 2):
            return None
        old, new = self.memory[: steps // 2], self.memory[steps // 2 :]
        correlations, slopes = _column(new, 2), _column(self.memory, 3)
        if not correlations or not slopes:
            return None
        correlation = mean(correlations)
        rise = mean(_column(new, 0)) - mean(_column(old, 0))
        shorter, longer = mean(_column(old, 1)), mean(_column(new, 1))
        explained = mean(slopes) * (longer - shorter)
        fault = (
            correlation >= self._config.correlation
            and longer > shorter * (1 + self._config.growth)
            and rise > SURE * math.hypot(_error(_column(old, 0)), _error(_column(new, 0)))
            and explained >= self._config.explained * rise > 0
        )
        return Reading(
            fault=fault,
            metric=METRICS[2],
            value=correlation,
            threshold=self._config.correlation,
            said=f"over {steps} steps the reward rose by {rise:.3g} and the length from {shorter:.4g} to "
            f"{longer:.4g} tokens, which explains {explained:.3g} of it",
        )


def _column(steps: Memory, index: int) -> list[float]:
    return [value for step in steps if (value := step[index]) is not None]


def _error(values: list[float]) -> float:
    """The standard error of a mean."""
    middle = mean(values)
    squares = sum((value - middle) * (value - middle) for value in values)
    return math.sqrt(squares / max(1, len(values) - 1) / len(values))
