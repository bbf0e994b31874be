"""The distribution of completion lengths, fitted to groups of which some members were stopped before their
end."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roll_scheduler.errors import SchedulerError

__all__ = ["LengthFit", "fit_lengths"]

ROUNDS = 30
LEAST_VARIANCE = 1e-6


class LengthFit(NamedTuple):
    """Lognormal lengths: `exp(mean + between * z + own * y)`, z common to a group.

    Attributes:
        mean: Of the logarithm of the tokens.
        between: Its standard deviation between groups.
        own: The same between members of a group.
        cap: Greatest length that was seen; draws are cut to it.
    """

    mean: float
    between: float
    own: float
    cap: float

    def draw(self, rng: "np.random.Generator", groups: int, members: int) -> np.ndarray:
        """float64 [groups, members]: tokens of new completions."""
        common = rng.standard_normal((groups, 1)) * self.between
        own = rng.standard_normal((groups, members)) * self.own
        return np.minimum(np.exp(self.mean + common + own), self.cap)


def fit_lengths(ended: Sequence[Sequence[float]], stopped: Sequence[Sequence[float]] = ()) -> LengthFit:
    """The lengths behind what was seen.

    Moments, with those that were stopped at the mean of what is left above where they were stopped, given
    their group's mean; repeated until that agrees with itself (expectation maximisation).

    Args:
        ended: Tokens of the completions that ended, by group.
        stopped: Tokens of those that were stopped, of the same groups; empty if there are none.

    Raises:
        SchedulerError: If nothing ended, or there are not as many groups of both.
    """
    cuts = list(stopped) or [()] * len(ended)
    if len(cuts) != len(ended) or not any(len(group) for group in ended):
        raise SchedulerError(
            f"fit_lengths: got {len(ended)} groups of which {sum(map(len, ended))} completions ended, and "
            f"{len(cuts)} groups of stopped ones; allowed are as many groups, and at least one end"
        )
    group = np.repeat(np.arange(len(ended)), [len(a) + len(b) for a, b in zip(ended, cuts, strict=True)])
    values = np.array([tokens for a, b in zip(ended, cuts, strict=True) for tokens in (*a, *b)])
    cut = np.array(
        [flag for a, b in zip(ended, cuts, strict=True) for flag in [False] * len(a) + [True] * len(b)],
        dtype=np.bool_,
    )
    logs = np.log(np.maximum(values, 1.0))
    count = np.bincount(group, minlength=len(ended)).astype(np.float64)
    filled, extra = logs.copy(), np.zeros_like(logs)
    mean, between, own = _moments(filled, extra, group, count)
    for _ in range(ROUNDS if cut.any() else 0):
        within, across = own**2, between**2
        sums = np.bincount(group, weights=filled - mean, minlength=len(count))
        common = across * sums / (across * count + within)
        expected, variance = _above(logs[cut], (mean + common[group])[cut], own)
        filled[cut], extra[cut] = expected, variance
        mean, between, own = _moments(filled, extra, group, count)
    return LengthFit(float(mean), float(between), float(own), float(values.max()))


def _moments(
    logs: np.ndarray, extra: np.ndarray, group: np.ndarray, count: np.ndarray
) -> tuple[float, float, float]:
    """Mean, spread between groups and spread within, from logs [n] that are known up to variances `extra`."""
    used = count > 0
    means = np.bincount(group, weights=logs, minlength=len(count))[used] / count[used]
    mean = float(logs.mean())
    degrees = float(count.sum() - used.sum())
    total = float(((logs - mean) ** 2 + extra).mean())
    if degrees < 1:
        return mean, (total / 2) ** 0.5, (total / 2) ** 0.5
    own_means = np.bincount(group, weights=logs, minlength=len(count)) / np.maximum(count, 1)
    square = (logs - own_means[group]) ** 2
    within = max(LEAST_VARIANCE, float((square + extra).sum()) / degrees)
    spread = float(((means - means.mean()) ** 2).mean())
    across = max(LEAST_VARIANCE, spread - within * float((1 / count[used]).mean()))
    return mean, across**0.5, within**0.5


def _above(cut: np.ndarray, mean: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of normal variables given that they are greater than `cut`."""
    standard = np.clip((cut - mean) / deviation, -8.0, 8.0)
    hazard = _hazard(standard)
    return mean + deviation * hazard, deviation**2 * np.maximum(0.0, 1 - hazard * (hazard - standard))


def _hazard(standard: np.ndarray) -> np.ndarray:
    """Density of a standard normal variable given that it is not less, for -8 to 8."""
    upper = np.array([0.5 * math.erfc(value / math.sqrt(2)) for value in standard.tolist()])
    density = np.exp(-standard * standard / 2) / math.sqrt(2 * math.pi)
    hazard: np.ndarray = np.maximum(density / upper, standard)
    return hazard
