"""Prompts that are neither too hard nor too easy now, by pass rate. The `prompts` of a scheduler, or
alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Generic, TypeVar

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.prompts.source import KeyedPrompt

__all__ = ["Curriculum"]

P = TypeVar("P")

FORMAT = 1
UNSEEN, INSIDE, OUTSIDE = "unseen", "inside", "outside"


class Curriculum(Generic[P]):
    """Draws prompts whose estimated pass rate is inside a band, and explores the others on the side.

    A group whose completions all pass or all fail gives no gradient with group-relative advantages. `observe`
    tells how a prompt did; its estimate is a mean in which older results fade and which begins at that of all
    prompts. Inside the band prompts take turns. Exploration takes prompts that were never tried and, in turn
    with them, those outside the band, the one that was tried longest ago first: they may have become easier.

    For example, with `curriculum = Curriculum(prompts, low=0.2, high=0.8)`:

        drawn = next(curriculum)            # drawn.key, drawn.prompt
        curriculum.observe(drawn.key, 0.25, weight=8)       # two of eight passed

    Args:
        prompts: At least one.
        low: Estimate below which a prompt is too hard, 0 to `high`.
        high: Estimate above which it is too easy, `low` to 1.
        explore: Share of the draws that explore, 0 to 1. Where nothing is inside, all do.
        fade: What older results count for when a new one comes, 0 to 1.
        prior_weight: Completions that the mean of all prompts counts for, > 0.
        gap: Draws between two of the same prompt at least, >= 0; where the band has too few prompts for that,
            exploration fills in. None is a tenth of the number of prompts.
        seed: Of the order in which prompts are tried.
        keys: One a prompt, unique; None numbers them.
        domain: What the prompts are marked with.

    Raises:
        SchedulerError: If there is no prompt, keys are not unique, or a number is out of its range.
    """

    def __init__(
        self,
        prompts: Sequence[P],
        *,
        low: float = 0.1,
        high: float = 0.9,
        explore: float = 0.1,
        fade: float = 0.5,
        prior_weight: float = 1.0,
        gap: int | None = None,
        seed: int = 0,
        keys: Sequence[str] | None = None,
        domain: str = "",
    ) -> None:
        gap = len(prompts) // 10 if gap is None else gap
        names = [str(index) for index in range(len(prompts))] if keys is None else list(keys)
        if not names or len(names) != len(prompts) or len(set(names)) != len(names):
            raise SchedulerError(
                f"Curriculum: got {len(prompts)} prompts and {len(set(names))} different keys, allowed is "
                "one key a prompt and at least one prompt"
            )
        if not (is_finite(low) and is_finite(high) and 0 <= low <= high <= 1):
            raise SchedulerError(
                f"Curriculum: got low={low!r}, high={high!r}, allowed is 0 <= low <= high <= 1"
            )
        for what, value, most in (("explore", explore, 1.0), ("fade", fade, 1.0), ("gap", gap, math.inf)):
            if not (is_finite(value) and 0 <= value <= most):
                raise SchedulerError(f"Curriculum.{what}: got {value!r}, allowed is 0 to {most:g}")
        if not (is_finite(prior_weight) and prior_weight > 0):
            raise SchedulerError(f"Curriculum.prior_weight: got {prior_weight!r}, allowed is > 0")
        self._index = {name: index for index, name in enumerate(names)}
        self._prompts = prompts
        self._domain = domain
        self._band = (low, high)
        self._explore, self._fade, self._prior_weight, self._gap = explore, fade, prior_weight, gap
        order = list(names)
        Random(f"{seed}/curriculum").shuffle(order)
        self._order = tuple(order)
        self._pools: dict[str, dict[str, None]] = {}
        self._where: dict[str, str] = {}
        self._begin()
        self._seen: dict[str, tuple[float, float]] = {}
        self._all = [0.0, 0.0]
        self._drawn: dict[str, int] = {}
        self._draws = 0
        self._credit = 0.0
        self._unseen_next = True

    def __iter__(self) -> Iterator[KeyedPrompt[P]]:
        return self

    def __next__(self) -> KeyedPrompt[P]:
        """The next prompt; there is always one."""
        self._credit += self._explore
        key = None
        if self._credit < 1:
            key = self._first(INSIDE)
        if key is None:
            self._credit = max(0.0, self._credit - 1)
            pools = (UNSEEN, OUTSIDE) if self._unseen_next else (OUTSIDE, UNSEEN)
            key = self._first(pools[0]) or self._first(pools[1]) or self._first(INSIDE)
            self._unseen_next = not self._unseen_next
        if key is None:  # those whose turn it is were all drawn less than `gap` draws ago
            turns = (next(iter(pool)) for pool in self._pools.values() if pool)
            key = min(turns, key=self._drawn.__getitem__)
        where = self._where[key]
        del self._pools[where][key]
        self._pools[where][key] = None
        self._drawn[key] = self._draws
        self._draws += 1
        return self.prompt(key)

    def observe(self, key: str, value: float, weight: float = 1.0) -> None:
        """Some completions of a prompt were graded.

        Args:
            key: The prompt.
            value: Share of them that passed, 0 to 1.
            weight: How many they were, > 0.

        Raises:
            SchedulerError: If there is no such prompt, or a number is out of its range.
        """
        self._known(key, "observe")
        if not (0 <= value <= 1 and 0 < weight < math.inf):
            raise SchedulerError(
                f"Curriculum.observe: got value {value!r} and weight {weight!r} for {key!r}, allowed are "
                "0 to 1 and > 0"
            )
        value, weight = float(value), float(weight)  # what JSON can hold
        passed, tried = self._seen.get(key, (0.0, 0.0))
        self._seen[key] = (passed * self._fade + value * weight, tried * self._fade + weight)
        self._all[0] = 0.999 * self._all[0] + value * weight
        self._all[1] = 0.999 * self._all[1] + weight
        low, high = self._band
        rate = self.pass_rate(key)
        self._move(key, INSIDE if low <= rate <= high else OUTSIDE)

    def pass_rate(self, key: str) -> float:
        """Estimated pass rate of a prompt, that of all prompts if it was never tried.

        Raises:
            SchedulerError: If there is no such prompt.
        """
        self._known(key, "pass_rate")
        passed, tried = self._seen.get(key, (0.0, 0.0))
        everywhere = (self._all[0] + 0.5) / (self._all[1] + 1.0)
        return (passed + self._prior_weight * everywhere) / (tried + self._prior_weight)

    def counts(self) -> dict[str, int]:
        """Prompts that were never tried, that are inside the band, and outside."""
        return {name: len(pool) for name, pool in self._pools.items()}

    def prompt(self, key: str) -> KeyedPrompt[P]:
        """The prompt with this key; see `PromptSource`.

        Raises:
            SchedulerError: If there is none.
        """
        self._known(key, "prompt")
        return KeyedPrompt(key, self._domain, self._prompts[self._index[key]])

    def state(self) -> dict[str, Any]:
        """All that was observed and where it is; see `PromptSource`."""
        return {
            "format": FORMAT,
            "prompts": len(self._prompts),
            "seen": {key: list(record) for key, record in self._seen.items()},
            "all": list(self._all),
            INSIDE: list(self._pools[INSIDE]),
            OUTSIDE: list(self._pools[OUTSIDE]),
            "drawn": dict(self._drawn),
            "draws": self._draws,
            "credit": self._credit,
            "unseen_next": self._unseen_next,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; see `PromptSource`.

        Raises:
            SchedulerError: If it is of other prompts.
        """
        if state.get("format") != FORMAT or state.get("prompts") != len(self._prompts):
            raise SchedulerError(
                f"Curriculum.restore: got format {state.get('format')!r} of {state.get('prompts')!r} "
                f"prompts, allowed are {FORMAT} and {len(self._prompts)}"
            )
        before = self.state()
        try:
            self._begin()
            for where in (INSIDE, OUTSIDE):
                for key in state[where]:
                    self._known(key, "restore")
                    self._move(key, where)
            seen = state["seen"].items()
            self._seen = {key: (float(passed), float(tried)) for key, (passed, tried) in seen}
            self._all = [float(value) for value in state["all"]]
            self._drawn = {key: int(draw) for key, draw in state["drawn"].items()}
            for key in sorted(self._drawn, key=self._drawn.__getitem__):
                if self._where[key] == UNSEEN:
                    self._move(key, UNSEEN)
            self._draws, self._credit = int(state["draws"]), float(state["credit"])
            self._unseen_next = bool(state["unseen_next"])
        except (KeyError, TypeError, ValueError, SchedulerError) as error:
            self.restore(before)
            raise SchedulerError(f"Curriculum.restore: got what is no state of it: {error!r}") from error

    def _begin(self) -> None:
        self._pools = {UNSEEN: dict.fromkeys(self._order), INSIDE: {}, OUTSIDE: {}}
        self._where = dict.fromkeys(self._order, UNSEEN)

    def _first(self, where: str) -> str | None:
        """The prompt of a pool whose turn it is, None if it is empty or that one was drawn just before."""
        key = next(iter(self._pools[where]), None)
        if key is None or (key in self._drawn and self._draws - self._drawn[key] <= self._gap):
            return None
        return key

    def _move(self, key: str, where: str) -> None:
        """Puts a prompt at the end of a pool; in its own it stays where it is, unless it is new there."""
        if self._where[key] != where or where == UNSEEN:
            del self._pools[self._where[key]][key]
            self._pools[where][key] = None
            self._where[key] = where

    def _known(self, key: str, where: str) -> None:
        if key not in self._index:
            raise SchedulerError(f"Curriculum.{where}: got key {key!r}, which no prompt has")
