"""How long a completion will be, from what has been seen. Used by the core, or alone in front of any engine.

Logarithms of lengths are taken as normal: a domain's mean, plus a part that the completions of one prompt
have in common, plus a part of each one's own. How much is which is estimated on the way (empirical Bayes), so
a prediction begins at the domain's mean and moves to the prompt's own as its completions end. Those that
still run count too: a group of which four have run for 3,000 tokens without an end is a long one.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["LengthPredictor", "LengthPrior"]

ROOT_2 = math.sqrt(2)
ROOT_2_PI = math.sqrt(2 * math.pi)
LEAST_INFORMATION = -2.0
"""Standard deviations below the mean at which a completion that still runs tells next to nothing."""

FAR = 6.0
LEAST_VARIANCE = 1e-4
MOST_SO_FAR = 4
MOST_LOG = 700.0
"""Logarithm that a float's exponential still holds."""

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPrior:
    """What is believed before anything was seen, for example `LengthPrior(median=300)`.

    Attributes:
        median: Tokens of a completion, >= 1.
        prompt_spread: Standard deviation of the logarithm between prompts, > 0.
        completion_spread: The same between the completions of one prompt, > 0.
        weight: Completions that this belief counts for, > 0.
    """

    median: float = 500.0
    prompt_spread: float = 0.7
    completion_spread: float = 0.7
    weight: float = 8.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1.0 if field.name == "median" else 1e-3
            if not (is_finite(value) and value >= least):
                raise SchedulerError(f"LengthPrior.{field.name}: got {value!r}, allowed is >= {least}")


class _Moments:
    """Mean and variance that forget: an observation counts for 1/memory at least."""

    __slots__ = ("count", "mean", "variance")

    def __init__(self, count: float = 0.0, mean: float = 0.0, variance: float = 0.0) -> None:
        self.count = count
        self.mean = mean
        self.variance = variance

    def add(self, value: float, memory: float) -> None:
        """Takes in a value."""
        self.count = min(self.count + 1, memory)
        before = value - self.mean
        self.mean += before / self.count
        self.variance += (before * (value - self.mean) - self.variance) / self.count

    def vary(self, square: float, memory: float) -> None:
        """Takes in a squared deviation from a mean that is known otherwise."""
        self.count = min(self.count + 1, memory)
        self.variance += (square - self.variance) / self.count


class LengthPredictor:
    """An online estimator of completion lengths; every call takes microseconds, memory is bounded.

    For example, with `predictor = LengthPredictor(cap=16_384)`:

        predictor.observe("gsm8k/17", "math", 812)
        predictor.expected("gsm8k/17", "math")                      # of the next completion
        predictor.expected("gsm8k/17", "math", so_far=2_000)        # of one that has 2,000 and goes on
        predictor.expected("gsm8k/17", "math", running=(3_000,))    # of a sibling of that one

    Args:
        prior: What is believed at first.
        cap: Greatest number of tokens of a completion, None if there is no limit.
        memory: Completions over which means and spreads are averaged, >= 2; older ones fade.
        prompt_memory: The same for one prompt, >= 1.
        most_prompts: Prompts that are remembered, >= 1; the one that was seen longest ago is forgotten first.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    def __init__(
        self,
        prior: LengthPrior | None = None,
        *,
        cap: int | None = None,
        memory: int = 20_000,
        prompt_memory: int = 32,
        most_prompts: int = 100_000,
    ) -> None:
        for name, value, least in (
            ("cap", cap, 1),
            ("memory", memory, 2),
            ("prompt_memory", prompt_memory, 1),
            ("most_prompts", most_prompts, 1),
        ):
            if not (is_finite(value) and value >= least) and not (value is None and name == "cap"):
                raise SchedulerError(f"LengthPredictor.{name}: got {value!r}, allowed is >= {least}")
        self._prior = prior or LengthPrior()
        self._cap = math.inf if cap is None else float(cap)
        self._memory = float(memory)
        self._prompt_memory = float(prompt_memory)
        self._most_prompts = most_prompts
        between, own = self._prior.prompt_spread**2, self._prior.completion_spread**2
        self._own = _Moments(self._prior.weight, 0.0, own)
        self._all = _Moments(self._prior.weight, math.log(self._prior.median), between + own)
        self._domains: dict[str, _Moments] = {}
        self._prompts: dict[Hashable, tuple[float, float]] = {}

    def observe(self, key: Hashable, domain: str, tokens: float, truncated: bool = False) -> None:
        """A completion ended.

        Args:
            key: Its prompt; None if that is not known.
            domain: Its domain.
            tokens: Its length; what is below 1 counts as 1.
            truncated: Whether it was stopped, at a limit or otherwise: it would have been longer.

        Raises:
            SchedulerError: If its length is not finite.
        """
        if not -math.inf < tokens < math.inf:
            raise SchedulerError(
                f"LengthPredictor.observe: got {tokens!r} tokens, allowed is a finite number"
            )
        log = math.log(max(tokens, 1.0))
        prior_mean = self._domain_mean(domain)
        record = self._prompts.pop(key, None) if key is not None else None
        own = self._own.variance
        count, residual = record or (0.0, 0.0)
        weight, seen = 1.0, log
        if truncated:
            common, variance = self._shrunk(count, residual)
            weight, seen, log = _as_observation(log, prior_mean + common, variance, own)
        elif count:
            gap = log - prior_mean - residual
            self._own.vary(gap * gap * count / (count + 1), self._memory)
        self._all.add(log, self._memory)
        self._domains.setdefault(domain, _Moments()).add(log, self._memory)
        if key is None:
            return
        total = count + weight
        residual += (seen - prior_mean - residual) * (weight / total if total else 0.0)
        self._prompts[key] = (min(total, self._prompt_memory), residual)
        if len(self._prompts) > self._most_prompts:
            del self._prompts[next(iter(self._prompts))]

    def expected(
        self, key: Hashable, domain: str = "", *, so_far: float = 0.0, running: Sequence[float] = ()
    ) -> float:
        """Mean tokens of a completion in all, at most `cap`.

        Args:
            key: Its prompt; None if that is not known.
            domain: Its domain.
            so_far: Tokens that it has.
            running: Tokens of others of the same prompt that have not ended; the four longest count.
        """
        mean, deviation = self._predictive(key, domain, running)
        if so_far >= self._cap:
            return self._cap
        least = math.log(so_far) if so_far > 0 else -math.inf
        beyond = _upper((least - mean) / deviation)
        standard = (least - mean) / deviation
        if standard > FAR:
            return min(self._cap, so_far * (1 + deviation / standard))
        scale = math.exp(min(mean + deviation * deviation / 2, MOST_LOG))
        if self._cap == math.inf:
            return max(so_far, scale * _upper(standard - deviation) / beyond)
        end = (math.log(self._cap) - mean) / deviation
        inside = scale * (_upper(standard - deviation) - _upper(end - deviation))
        return min(self._cap, max(so_far, (inside + self._cap * _upper(end)) / beyond))

    def quantile(
        self,
        share: float,
        key: Hashable,
        domain: str = "",
        *,
        so_far: float = 0.0,
        running: Sequence[float] = (),
    ) -> float:
        """Tokens that a completion stays below with probability `share`, at most `cap`; see `expected`.

        Raises:
            SchedulerError: If `share` is not between 0 and 1.
        """
        if not 0 < share < 1:
            raise SchedulerError(f"LengthPredictor.quantile: got {share!r}, allowed is 0 < share < 1")
        mean, deviation = self._predictive(key, domain, running)
        low = (math.log(so_far) - mean) / deviation if so_far > 0 else -math.inf
        wanted = (1 - share) * _upper(low)
        if wanted <= 0:
            return min(self._cap, so_far)
        return min(self._cap, max(so_far, math.exp(min(mean + deviation * _upper_inverse(wanted), MOST_LOG))))

    def forget(self, key: Hashable) -> None:
        """Forgets a prompt, if it is known."""
        self._prompts.pop(key, None)

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON; of the prompts those whose key is a string."""
        return {
            "format": FORMAT,
            "own": _listed(self._own),
            "all": _listed(self._all),
            "domains": {name: _listed(moments) for name, moments in self._domains.items()},
            "prompts": {key: list(record) for key, record in self._prompts.items() if isinstance(key, str)},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`.

        Raises:
            SchedulerError: If it is not one.
        """
        try:
            if state["format"] != FORMAT:
                raise SchedulerError(
                    f"LengthPredictor.restore: got format {state['format']!r}, allowed is {FORMAT}"
                )
            own, everything = _Moments(*state["own"]), _Moments(*state["all"])
            domains = {str(name): _Moments(*values) for name, values in state["domains"].items()}
            prompts = {key: (float(count), float(mean)) for key, (count, mean) in state["prompts"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchedulerError(f"LengthPredictor.restore: got what is no state of it: {error!r}") from error
        self._own, self._all, self._domains, self._prompts = own, everything, domains, dict(prompts)

    def _domain_mean(self, domain: str) -> float:
        """Mean logarithm of a domain, drawn to that of all as long as little was seen of it."""
        known = self._domains.get(domain)
        if known is None:
            return self._all.mean
        weight = self._prior.weight
        return (known.count * known.mean + weight * self._all.mean) / (known.count + weight)

    def _shrunk(self, count: float, residual: float) -> tuple[float, float]:
        """Posterior mean and variance of the part that a prompt's completions have in common."""
        own = self._own.variance
        between = max(self._all.variance - own, 0.05 * self._all.variance, LEAST_VARIANCE)
        precision = 1 / between + count / own
        return residual * count / own / precision, 1 / precision

    def _predictive(self, key: Hashable, domain: str, running: Sequence[float]) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of a further completion of a prompt."""
        own = self._own.variance
        base = self._domain_mean(domain)
        record = self._prompts.get(key) if key is not None else None
        common, variance = self._shrunk(*record) if record else self._shrunk(0.0, 0.0)
        for tokens in sorted(running, reverse=True)[:MOST_SO_FAR]:
            log = math.log(max(tokens, 1.0)) - base
            if log - common < LEAST_INFORMATION * math.sqrt(own + variance):
                break
            common, variance = _longer_than(log, common, variance, own)
        return base + common, math.sqrt(own + variance)


def _longer_than(log: float, mean: float, variance: float, own: float) -> tuple[float, float]:
    """Mean and variance of a normal variable, once a draw around it has turned out to be greater than `log`.

    Args:
        log: What the draw is greater than.
        mean: Of the variable before.
        variance: Of the variable before.
        own: Variance of the draw around the variable.

    Source: the moments of a truncated normal distribution (assumed-density filtering).
    """
    total = own + variance
    standard = (log - mean) / math.sqrt(total)
    hazard = _hazard(standard)
    shrunk = variance * (1 - variance / total * hazard * (hazard - standard))
    return mean + variance * hazard / math.sqrt(total), shrunk


def _as_observation(log: float, mean: float, variance: float, own: float) -> tuple[float, float, float]:
    """What a completion says that is longer than it looks, see `_longer_than`, as one that has ended.

    Returns:
        What it counts for, 0 to 1; the logarithm of the one that has ended; and the mean logarithm of all
        that are that much longer.
    """
    after, left = _longer_than(log, mean, variance, own)
    precision = max(1 / left - 1 / variance, 1e-9)
    expected = mean + math.sqrt(own + variance) * _hazard((log - mean) / math.sqrt(own + variance))
    return precision * own, mean + (after - mean) / left / precision, expected


def _listed(moments: _Moments) -> list[float]:
    return [moments.count, moments.mean, moments.variance]


def _upper(standard: float) -> float:
    """Probability that a standard normal variable is greater."""
    return 0.5 * math.erfc(standard / ROOT_2)


def _hazard(standard: float) -> float:
    """Density of a standard normal variable given that it is not less."""
    if standard > FAR:
        return standard + 1 / standard
    return math.exp(-standard * standard / 2) / ROOT_2_PI / _upper(standard)


def _upper_inverse(probability: float) -> float:
    """The value that a standard normal variable exceeds with this probability."""
    low, high = -FAR * 2, FAR * 2
    for _ in range(60):
        middle = (low + high) / 2
        if _upper(middle) > probability:
            low = middle
        else:
            high = middle
    return high
