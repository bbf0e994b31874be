"""Prompts of several domains in fixed proportions, evenly interleaved. The `prompts` of a scheduler, or
alone."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.prompts.source import KeyedPrompt, PromptSource, ResultObserver

__all__ = ["Mixture", "MixtureDomain"]

P = TypeVar("P")

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureDomain(Generic[P]):
    """A domain of a mixture, for example `MixtureDomain(source=PromptList(math), weight=2, least=4)`.

    Attributes:
        source: Its prompts.
        weight: Its share of the prompts, relative to the other weights, > 0.
        least: Prompts in each batch at least, >= 0.
        most: Prompts in each batch at most, >= `least`; None is no limit.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    source: PromptSource[P]
    weight: float = 1.0
    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if not (is_finite(self.weight) and self.weight > 0):
            raise SchedulerError(f"MixtureDomain.weight: got {self.weight!r}, allowed is > 0")
        if not isinstance(self.least, int) or self.least < 0:
            raise SchedulerError(f"MixtureDomain.least: got {self.least!r}, allowed is an integer >= 0")
        if self.most is not None and (not isinstance(self.most, int) or self.most < max(1, self.least)):
            raise SchedulerError(
                f"MixtureDomain.most: got {self.most!r}, allowed is an integer of at least "
                f"{max(1, self.least)}, or None"
            )


class Mixture(Generic[P]):
    """Domains take turns so that after any number of prompts each has had its share, to within one.

    With quotas, shares are those nearest to the weights that the quotas allow, and each run of `batch`
    prompts keeps to them. A domain whose source ends is left out from then on, and the others share what it
    had. Keys of prompts begin with the domain's name: `"math/17"`.

    Source: Tijdeman, The chairman assignment problem, Discrete Mathematics 32, 1980: no interleaving keeps
    all domains nearer to their shares.

    Args:
        domains: By name, without a slash; at least one.
        batch: Prompts for which quotas hold, >= 1.
        until: Whether the mixture ends with the `"first"` domain that ends, or with the last (`"all"`).

    Raises:
        SchedulerError: If there is no domain, or the quotas cannot be kept.
    """

    def __init__(
        self,
        domains: Mapping[str, MixtureDomain[P]],
        *,
        batch: int = 1,
        until: Literal["first", "all"] = "all",
    ) -> None:
        if not domains:
            raise SchedulerError("Mixture: got no domain, at least one is needed")
        wrong = [name for name in domains if not name or "/" in name]
        if wrong:
            raise SchedulerError(f"Mixture: got a domain {wrong[0]!r}, allowed are names without a slash")
        if not isinstance(batch, int) or batch < 1:
            raise SchedulerError(f"Mixture.batch: got {batch!r}, allowed is an integer >= 1")
        if until not in ("first", "all"):
            raise SchedulerError(f"Mixture.until: got {until!r}, allowed is 'first' or 'all'")
        self._domains = dict(domains)
        self._batch = batch
        self._until = until
        least = sum(domain.least for domain in domains.values())
        most = sum(batch if domain.most is None else domain.most for domain in domains.values())
        if not least <= batch <= most:
            raise SchedulerError(
                f"Mixture: quotas ask for {least} to {most} prompts of a batch of {batch}, allowed are "
                f"sums of least <= {batch} <= most"
            )
        self._in_batch: dict[str, int] = {}
        self._given = 0
        self._live(list(self._domains))

    def __iter__(self) -> Iterator[KeyedPrompt[P]]:
        return self

    def __next__(self) -> KeyedPrompt[P]:
        while self._share:
            name = self._turn()
            try:
                drawn = next(self._domains[name].source)
            except StopIteration:
                left = [other for other in self._share if other != name]
                self._live([] if self._until == "first" else left)
                continue
            self._count[name] += 1
            self._steps += 1
            self._in_batch[name] = self._in_batch.get(name, 0) + 1
            self._given += 1
            if self._given % self._batch == 0:
                self._in_batch = {}
            return self._named(name, drawn)
        raise StopIteration

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the domains that have prompts left, with sum 1."""
        return dict(self._share)

    def prompt(self, key: str) -> KeyedPrompt[P]:
        """The prompt with this key; see `PromptSource`.

        Raises:
            SchedulerError: If there is no such domain.
        """
        name, _, rest = key.partition("/")
        if name not in self._domains:
            raise SchedulerError(f"Mixture.prompt: got {key!r}, domains are {sorted(self._domains)}")
        return self._named(name, self._domains[name].source.prompt(rest))

    def observe(self, key: str, value: float, weight: float = 1.0) -> None:
        """Tells a prompt's domain how it did, if its source is a `ResultObserver`.

        Raises:
            SchedulerError: If there is no such domain.
        """
        name, _, rest = key.partition("/")
        if name not in self._domains:
            raise SchedulerError(f"Mixture.observe: got {key!r}, domains are {sorted(self._domains)}")
        source: object = self._domains[name].source
        if isinstance(source, ResultObserver):
            source.observe(rest, value, weight)

    def state(self) -> dict[str, Any]:
        """Where it is, and where its sources are; see `PromptSource`."""
        return {
            "format": FORMAT,
            "batch": self._batch,
            "weights": {name: domain.weight for name, domain in self._domains.items()},
            "live": list(self._share),
            "count": dict(self._count),
            "in_batch": dict(self._in_batch),
            "given": self._given,
            "sources": {name: domain.source.state() for name, domain in self._domains.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; see `PromptSource`.

        Raises:
            SchedulerError: If it is of other domains, weights or batches.
        """
        ours = self.state()
        for name in ("format", "batch", "weights"):
            if state.get(name) != ours[name]:
                raise SchedulerError(
                    f"Mixture.restore: got {name} {state.get(name)!r}, allowed is {ours[name]!r}"
                )
        try:
            for name, domain in self._domains.items():
                domain.source.restore(state["sources"][name])
            self._live([str(name) for name in state["live"]])
            self._count = {name: int(state["count"][name]) for name in self._share}
            self._steps = sum(self._count.values())
            self._in_batch = {str(name): int(count) for name, count in state["in_batch"].items()}
            self._given = int(state["given"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchedulerError(f"Mixture.restore: got what is no state of it: {error!r}") from error

    def _named(self, name: str, drawn: KeyedPrompt[P]) -> KeyedPrompt[P]:
        return KeyedPrompt(f"{name}/{drawn.key}", name, drawn.prompt)

    def _live(self, names: list[str]) -> None:
        """These domains have prompts left; shares are counted from here on."""
        self._share = _shares({name: self._domains[name] for name in names}, self._batch)
        self._count = dict.fromkeys(names, 0)
        self._steps = 0

    def _turn(self) -> str:
        """The domain that has to come now for all to stay within their bounds."""
        able = self._able()
        slack = 1 - 1 / (2 * len(self._share) - 2) if len(self._share) > 1 else 0.0
        due = {name: self._share[name] * (self._steps + 1) - self._count[name] for name in able}
        ready = [name for name in able if due[name] >= 1 - slack - 1e-9]
        if not ready:
            return max(able, key=due.__getitem__)
        return min(ready, key=lambda name: (slack - due[name]) / self._share[name])

    def _able(self) -> list[str]:
        """Domains that the quotas of this batch allow next, all of them if the quotas cannot be kept."""
        owed = {name: max(0, self._domains[name].least - self._in_batch.get(name, 0)) for name in self._share}
        left = self._batch - self._given % self._batch
        if 0 < left <= sum(owed.values()):
            return [name for name in self._share if owed[name]]
        able = []
        for name in self._share:
            most = self._domains[name].most
            if most is None or self._in_batch.get(name, 0) < most:
                able.append(name)
        return able or list(self._share)


def _shares(domains: Mapping[str, MixtureDomain[Any]], batch: int) -> dict[str, float]:
    """Shares with sum 1 that are proportional to the weights, as far as quotas allow.

    The factor of the weights is found by bisection: the shares clipped to the quotas grow with it.
    """
    if not domains:
        return {}

    def clipped(factor: float) -> dict[str, float]:
        return {
            name: min(
                math.inf if domain.most is None else domain.most / batch,
                max(domain.least / batch, factor * domain.weight),
            )
            for name, domain in domains.items()
        }

    low, high = 0.0, 2.0 / min(domain.weight for domain in domains.values())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(clipped(middle).values()) < 1 else (low, middle)
    found = clipped(high)
    total = sum(found.values())
    return {name: share / total for name, share in found.items()}
