"""How many groups and completions more than a batch needs are worth sending out, from the lengths that were
seen.

More groups and members shorten a round, as the slowest need not be waited for, until their own work fills the
slots; and what a round does without comes back in long rounds (`OverProvision(defer=True)`). Lengths are
fitted as `LengthPredictor` sees them: a part common to a prompt and a part of each completion's own. What was
aborted counts as longer than it got, otherwise over-provisioning would make the tail look short and itself
needless.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lengths.fit import LengthFit, fit_lengths
from roll_scheduler.numbers import is_finite
from roll_scheduler.policy import OverProvision
from roll_scheduler.ticket import as_integer

__all__ = ["AdaptiveOverProvision", "RoundModel"]

DRAWS = 4
STEPS = 8
"""A step of the search is this part of a batch or of a group, or one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundModel:
    """What a round is, for example `RoundModel(groups=128, group_size=8, slots=1024, base_s=0.01)`.

    Attributes:
        groups: Groups of a batch, >= 1.
        group_size: Completions of a group, >= 1.
        slots: Slots of all replicas, >= 1.
        base_s: Seconds of a decode iteration apart from its sequences, > 0.
        sequence_s: Seconds that each further sequence of a replica's full batch adds to it, times the slots
        of
            one replica: an iteration takes `base_s` when nearly empty and `base_s + sequence_s` when full.
        defer: Whether what a round does without has a long round of its own.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    groups: int
    group_size: int
    slots: int
    base_s: float = 0.01
    sequence_s: float = 0.0
    defer: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("sequence_s", "defer") else 1e-9 if field.name == "base_s" else 1
            number = isinstance(value, bool) if field.name == "defer" else is_finite(value)
            if not (number and value >= least):
                raise SchedulerError(f"RoundModel.{field.name}: got {value!r}, allowed is >= {least}")

    def seconds(
        self, fit: LengthFit, *, groups: int, members: int, draws: int = DRAWS, seed: int = 0
    ) -> float:
        """Expected seconds of a batch with that many groups and members more than it needs.

        Every choice is judged by the same draws. With `defer` it is the mean over short rounds and the long
        rounds that follow from them.

        Args:
            fit: Distribution of lengths.
            groups: Further groups of a short round, >= 0.
            members: Further completions of each group, >= 0.
            draws: Rounds that are simulated.
            seed: Of the draws.
        """
        total = 0.0
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw])
            lengths = fit.draw(rng, 2 * self.groups, 2 * self.group_size)
            short, left = self._round(lengths[: self.groups + groups, : self.group_size + members])
            total += short
            if self.defer and groups and len(left):
                # A long round comes when as many prompts are aside as a batch has.
                slow = lengths[left, : self.group_size]
                long_s, _ = self._round(np.resize(slow, (self.groups, self.group_size)))
                share = len(left) / self.groups
                total += (short + share * long_s) / (1 + share) - short
        return total / draws

    def _round(self, lengths: np.ndarray) -> tuple[float, np.ndarray]:
        """Seconds until `self.groups` rows have `self.group_size` ends, and the other rows."""
        ends = _finish_times(lengths.ravel(), self.slots).reshape(lengths.shape)
        done = np.partition(ends, self.group_size - 1, axis=1)[:, self.group_size - 1]
        last = np.partition(done, self.groups - 1)[self.groups - 1]
        busy = min(1.0, float(np.minimum(ends, last).sum()) / (float(last) * self.slots))
        return float(last) * (self.base_s + self.sequence_s * busy), np.flatnonzero(done > last)


class AdaptiveOverProvision:
    """Chooses over-provisioning anew as lengths are observed.

    It moves one step at a time, and only where the model expects at least `gain`; what it chooses is never
    expected to be slower than no over-provisioning, and never sends out more than `most` times what a batch
    needs.

    Args:
        model: What a round is.
        most: Tickets sent out as a multiple of those needed, >= 1.
        gain: Least part of a round that a change has to save, >= 0.
        window: Groups that the fit is made from, >= 2; older ones are forgotten.
        limit: Groups and members that it chooses at most; None leaves it to `most`.

    Attributes:
        model: What a round is; may be replaced.
        groups: Further groups of a short round, now.
        members: Further completions of a group, now.

    Raises:
        SchedulerError: If a number is out of its range.
    """

    def __init__(
        self,
        model: RoundModel,
        *,
        most: float = 1.6,
        gain: float = 0.02,
        window: int = 512,
        limit: OverProvision | None = None,
    ) -> None:
        if not isinstance(model, RoundModel):
            raise SchedulerError(f"AdaptiveOverProvision.model: got {model!r}, allowed is a RoundModel")
        for name, value, least in (("most", most, 1.0), ("gain", gain, 0.0), ("window", window, 2)):
            if not (is_finite(value) and value >= least):
                raise SchedulerError(f"AdaptiveOverProvision.{name}: got {value!r}, allowed is >= {least}")
        self.model = model
        self._limit = (model.groups, model.group_size)
        if limit is not None:
            self._limit = (limit.groups, limit.members)
        self._most = most
        self._gain = gain
        self._seen: deque[tuple[list[float], list[float]]] = deque(maxlen=window)
        self.groups = 0
        self.members = 0

    def observe(self, ended: Sequence[float], aborted: Sequence[float] = ()) -> None:
        """A group was delivered, dropped or deferred.

        Args:
            ended: Tokens of its completions that ended.
            aborted: Tokens of those that were stopped before.

        Raises:
            SchedulerError: If a length is negative or not finite.
        """
        for tokens in (*ended, *aborted):
            if not (math.isfinite(tokens) and tokens >= 0):
                raise SchedulerError(f"AdaptiveOverProvision.observe: got {tokens!r} tokens, allowed is >= 0")
        if ended or aborted:
            self._seen.append((list(ended), list(aborted)))

    def choose(self) -> OverProvision | None:
        """What the next rounds should use, None for no over-provisioning."""
        if len(self._seen) >= 2:
            fit = fit_lengths([ended for ended, _ in self._seen], [aborted for _, aborted in self._seen])
            self.groups, self.members = self._best(fit)
        if self.groups == self.members == 0:
            return None
        return OverProvision(groups=self.groups, members=self.members, defer=self.model.defer)

    def state(self) -> dict[str, Any]:
        """Lengths that were seen and what was chosen, as JSON; see `StatefulPart`."""
        seen = [[list(ended), list(aborted)] for ended, aborted in self._seen]
        return {"groups": self.groups, "members": self.members, "seen": seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; what it chose is kept as far as the limits allow.

        Raises:
            SchedulerError: If it is not one.
        """
        try:
            groups, members = as_integer(state["groups"], "groups"), as_integer(state["members"], "members")
            seen = [([*map(float, ended)], [*map(float, aborted)]) for ended, aborted in state["seen"]]
        except (KeyError, TypeError, ValueError, SchedulerError) as error:
            raise SchedulerError(
                f"AdaptiveOverProvision.restore: got what is no state of it: {error!r}"
            ) from error
        self._seen.clear()
        for ended, aborted in seen:
            self.observe(ended, aborted)
        allowed = self._allows(groups, members)
        self.groups, self.members = (groups, members) if allowed else (0, 0)

    def _best(self, fit: LengthFit) -> tuple[int, int]:
        model = self.model
        step_g, step_m = max(1, model.groups // STEPS), max(1, model.group_size // STEPS)
        here = (self.groups, self.members)
        steps = ((1, 0), (0, 1), (1, 1), (-1, 0), (0, -1), (1, -1), (-1, 1))
        around = {here, (0, 0)} | {(here[0] + i * step_g, here[1] + j * step_m) for i, j in steps}
        seconds = {
            choice: model.seconds(fit, groups=choice[0], members=choice[1])
            for choice in sorted(around)
            if self._allows(*choice)
        }
        best = min(seconds, key=lambda choice: (seconds[choice], choice))
        if seconds[here] >= seconds[0, 0] and seconds[best] > (1 - self._gain) * seconds[0, 0]:
            return 0, 0
        return best if seconds[best] <= (1 - self._gain) * seconds[here] else here

    def _allows(self, groups: int, members: int) -> bool:
        model = self.model
        if not (0 <= groups <= self._limit[0] and 0 <= members <= self._limit[1]):
            return False
        sent = (model.groups + groups) * (model.group_size + members)
        return sent <= self._most * model.groups * model.group_size + 1e-9


def _finish_times(lengths: np.ndarray, slots: int) -> np.ndarray:
    """float64 [n]: when each task ends, started in this order, each as soon as a slot is free."""
    if len(lengths) <= slots:
        return lengths.astype(np.float64)
    ends = np.empty(len(lengths), dtype=np.float64)
    ends[:slots] = lengths[:slots]
    running = ends[:slots].tolist()
    heapq.heapify(running)
    for position, length in enumerate(lengths[slots:].tolist(), start=slots):
        ends[position] = end = running[0] + length
        heapq.heapreplace(running, end)
    return ends
