"""Policies that collapse or run away."""

import math
from collections.abc import Mapping

from roll_launch.alarms.detector import Memory, Reading, mean, number
from roll_launch.config import EntropyCollapseConfig, KlExplosionConfig, RatioExplosionConfig


class EntropyCollapse:
    """The policy's entropy at the trained tokens has fallen to a small share of the first steps' mean.

    Entropy falls while a policy learns, by a factor of ten or more where few answers are right; the default
    is far below that. The metric is over the tokens that the step computed, which are those of groups that
    still differ.
    """

    name = "entropy_collapse"
    advice = (
        "Lower the learning rate, raise clip_high or add an entropy bonus, and go on from a checkpoint of "
        "before; more samples of one answer teach nothing."
    )

    def __init__(self, config: EntropyCollapseConfig) -> None:
        self.steps = config.steps
        self._share = config.share
        self._first_steps = config.first_steps
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """None in the first steps, which it only takes the mean of."""
        entropy = number(metrics, "actor/entropy")
        if entropy is None:
            return None
        if len(self.memory) < self._first_steps:
            self.memory.append([entropy])
            return None
        first = mean([value for (value,) in self.memory if value is not None])
        return Reading(
            fault=entropy < self._share * first,
            metric="actor/entropy",
            value=entropy,
            threshold=self._share * first,
            said=f"the policy's entropy is {entropy:.3g} nats a token, {first:.3g} in the first steps",
        )


class KlExplosion:
    """The policy moves too far within a step, or from its reference."""

    name = "kl_explosion"
    advice = (
        "Lower the learning rate, take fewer epochs or mini-batches, or raise the KL coefficient; see if "
        "actor/grad_norm rose first."
    )

    def __init__(self, config: KlExplosionConfig) -> None:
        self.steps = config.steps
        self._limits = (("actor/ppo_kl", config.update), ("actor/ref_kl", config.reference))
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """Estimates over samples may be negative; their size counts."""
        return _worst(metrics, self._limits, "the policy moved by {} nats a token")


class RatioExplosion:
    """Probability ratios of now to the step's beginning spread too wide, or most tokens are clipped.

    The deviation says what off-policy samples are worth: N tokens whose ratios deviate by s count as
    N / (1 + s^2).
    """

    name = "ratio_explosion"
    advice = (
        "Take fewer mini-batches or epochs, or a lower learning rate; look at actor/ratio_max and at "
        "training/rollout_probs_diff_mean."
    )

    def __init__(self, config: RatioExplosionConfig) -> None:
        self.steps = config.steps
        self._limits = (("actor/ratio_std", config.deviation), ("actor/pg_clipfrac", config.clipped))
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """Of the two metrics, the one that is farther above its limit."""
        return _worst(metrics, self._limits, "the ratios of the step's tokens have gone out of range: {}")


def _worst(
    metrics: Mapping[str, float], limits: tuple[tuple[str, float | None], ...], said: str
) -> Reading | None:
    """The metric with the highest share of its limit; infinity is above every limit."""
    found = [
        (abs(value) / limit, name, value, limit)
        for name, limit in limits
        if limit is not None and (value := metrics.get(name)) is not None and not math.isnan(value)
    ]
    if not found:
        return None
    share, name, value, limit = max(found)
    return Reading(
        fault=share > 1, metric=name, value=value, threshold=limit, said=said.format(f"{value:.3g}")
    )
