"""When a replica's devices go to the trainer and when they come back. A state machine without I/O.

In the tail of a rollout few sequences run on many replicas. They fit on a few, which then decode at a full
batch, and the devices of the others can train on the groups that are complete already: gradients are
accumulated and no optimizer step is made before the batch is whole, so that the step stays on-policy and
its data the same. `ElasticPlan` decides which replicas those are. Whoever runs it carries out `Lend` by
`SchedulerCore.replica_down(..., returns=True, planned=True)`, which moves what ran there to other replicas,
and `Reclaim` by `replica_up` as soon as the engine is back. Live and in the simulator it is the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite

__all__ = ["ElasticCommand", "ElasticLoad", "ElasticPlan", "ElasticPolicy", "Lend", "Reclaim"]

MEMORY = 0.5
"""Weight of the steps before in the mean length of a step."""

AHEAD = 0.85
"""Part of a step as long as those before at whose end its training is to end, where rollouts overlap."""

LEAST_LEFT = 0.05
"""Part of a step that is taken to be left at least: the tail may be longer than that of the steps before."""

LEAST_STAY = 0.25
"""Part of a step's training that there must be for a device that is lent although its slots are needed."""

LEAST_IDLE = 0.02
"""Part of it between two times that idle devices are given back to a rollout that overlaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPolicy:
    """How readily devices change sides, for example `ElasticPolicy(switch_s=5.0)`.

    Attributes:
        switch_s: Seconds in which a device that changes sides does neither, >= 0.
        sequence_share: By what share of its base an iteration grows with each sequence of its batch, >= 0
            (t1 / t0 of an iteration of t0 + t1 * b seconds). At 0 a full batch is as quick as a small one;
            above, the tail is packed less tightly where that would cost more than the trainer gains.
        least_work_s: Seconds of training that there must be for each lent device to lend one more, >= 0.
            None is twice `switch_s`: a device is not lent for less than what it loses by it.

    Raises:
        SchedulerError: If a value is out of its range.
    """

    switch_s: float = 5.0
    sequence_share: float = 0.005
    least_work_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("switch_s", "sequence_share", "least_work_s"):
            value = getattr(self, name)
            if not (is_finite(value) and value >= 0) and not (value is None and name == "least_work_s"):
                raise SchedulerError(f"ElasticPolicy.{name}: got {value!r}, allowed is a number >= 0")

    @property
    def worth_s(self) -> float:
        """Seconds of training for which a device is lent."""
        return 2 * self.switch_s if self.least_work_s is None else self.least_work_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticLoad:
    """What there is to do at a moment.

    Attributes:
        running: Tickets on each replica that generates.
        queued: Tickets that wait for a slot; a lower bound will do.
        trainable_s: Seconds that one device would take to train on the complete groups of the coming batch,
            as far as that is not done.
        coming_s: The same for the groups that are still needed to make the batch whole.
    """

    running: Mapping[str, int]
    queued: int
    trainable_s: float
    coming_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """The devices of a replica go to the trainer; what runs there moves to other replicas."""

    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """The devices of a replica come back; it is up again `switch_s` later."""

    replica: str


ElasticCommand: TypeAlias = Lend | Reclaim


class ElasticPlan:
    """Which replicas are lent.

    Args:
        policy: How readily.
        replicas: Slots by name, all on the side of the rollout.
        overlap: Whether rollouts go on while the trainer works on an earlier batch (`max_staleness` > 0).
            Only then are replicas lent that are needed for a full batch, as many as the trainer needs.

    Raises:
        SchedulerError: If there is no replica or one without a slot.
    """

    def __init__(self, policy: ElasticPolicy, replicas: Mapping[str, int], *, overlap: bool = False) -> None:
        if not replicas or min(replicas.values()) < 1:
            raise SchedulerError(f"ElasticPlan: got replicas {dict(replicas)}, allowed is >= 1 slot in each")
        self._policy = policy
        self._slots = dict(replicas)
        self._lent: dict[str, float] = {}
        self._overlap = overlap
        self._step_s: float | None = None
        self._train_s = 0.0
        self._began = 0.0
        self._given_back = -math.inf

    @property
    def lent(self) -> tuple[str, ...]:
        """Replicas that are lent, in the order in which they were."""
        return tuple(self._lent)

    def lost(self, replica: str) -> None:
        """A replica died, lent or not; it is left alone until `found`.

        Raises:
            SchedulerError: If it is not known.
        """
        if self._slots.pop(replica, None) is None:
            raise SchedulerError(f"ElasticPlan.lost: got {replica!r}, known are {sorted(self._slots)}")
        self._lent.pop(replica, None)

    def found(self, replica: str, slots: int) -> None:
        """A replica is there, for the first time or again, on the side of the rollout.

        Raises:
            SchedulerError: If it is there already or has no slot.
        """
        if replica in self._slots or slots < 1:
            raise SchedulerError(
                f"ElasticPlan.found: got {replica!r} with {slots} slots, allowed is a new one with >= 1"
            )
        self._slots[replica] = slots

    def decide(self, load: ElasticLoad, now: float) -> list[ElasticCommand]:
        """What changes sides now: lends only, or reclaims only. Call it when the load has changed.

        The last replica is not lent while a ticket runs or waits.
        """
        if not self._slots:
            return []
        up = len(self._slots) - len(self._lent)
        tickets = sum(load.running.values()) + load.queued
        if not tickets:
            # The rollout is over: the optimizer step wants all devices.
            over = load.trainable_s > 0 or load.coming_s <= 0
            return self._lend(up, tickets, load, now) if over else []
        if load.queued and self._lent:
            wanted = self._wanted_back(load, up, now)
            if wanted:
                return self._reclaim(wanted, now)
        demand = self._demand(load.trainable_s + load.coming_s, now) - len(self._lent)
        spare = up - max(1, self._enough(tickets))
        more = min(spare, demand, self._worth(load.trainable_s, self._policy.worth_s) - len(self._lent))
        if more > 0:
            return self._lend(more, tickets, load, now)
        if not self._overlap or self._step_s is None:
            return []
        stay_s = max(self._policy.worth_s, LEAST_STAY * self._train_s / len(self._slots))
        more = min(up - 1, demand, self._worth(load.trainable_s, stay_s) - len(self._lent))
        return self._lend(more, 0, load, now) if more > 0 else []

    def step_ended(self, train_s: float, now: float) -> list[ElasticCommand]:
        """Weights are published and the next batch begins: without overlap all devices generate.

        With overlap those come back that a step like the last ones would not need for its training.

        Args:
            train_s: Seconds that one device would have taken for the training of the step.
            now: The time.
        """
        step_s = now - self._began
        self._step_s = step_s if self._step_s is None else MEMORY * self._step_s + (1 - MEMORY) * step_s
        self._train_s, self._began = train_s, now
        keep = min(self._demand(train_s, now), len(self._slots) - 1) if self._overlap else 0
        return self._reclaim(len(self._lent) - keep, now)

    @property
    def _mean_slots(self) -> float:
        return sum(self._slots.values()) / len(self._slots)

    def _enough(self, tickets: int) -> int:
        """Replicas beyond which one more is worth more to the trainer than to the rollout.

        With n replicas an iteration takes 1 + q * tickets / n. One replica less lengthens what is left of the
        rollout by the ratio of the two; it shortens the training that would be left after it by 1 / D. The
        second is greater as long as (n - 1) * (n + q * tickets) > D * q * tickets.
        """
        extra = self._policy.sequence_share * tickets
        half = (1 - extra) / 2
        by_speed = math.floor(half + math.sqrt(half * half + extra * (1 + len(self._slots))) + 1e-9)
        by_slots = math.ceil(tickets / self._mean_slots)
        return max(by_slots, by_speed)

    def _demand(self, work_s: float, now: float) -> int:
        """Devices with which so much training ends when the step does, if it is as long as those before.

        More would slow the rollout for nothing; what is left over is quick, because all devices do it.
        """
        if self._step_s is None:
            return len(self._slots)
        planned_s = AHEAD * self._step_s if self._overlap else self._step_s
        left_s = max(planned_s - (now - self._began), LEAST_LEFT * self._step_s)
        everything = len(self._slots)
        return everything if work_s >= everything * left_s else math.ceil(work_s / left_s - 0.5)

    def _worth(self, trainable_s: float, each_s: float) -> int:
        """Devices for which there is that much to train on each."""
        if trainable_s <= 0:
            return 0
        everything = len(self._slots)
        return everything if trainable_s >= everything * each_s else int(trainable_s / each_s)

    def _wanted_back(self, load: ElasticLoad, up: int, now: float) -> int:
        """Lent replicas that waiting tickets want back.

        A rollout that training waits for has precedence, but not for a handful of tickets. Where the two
        overlap, the trainer keeps what it has work for, and gives back a few at a time: groups go on to
        complete.
        """
        wanted = min(math.ceil(load.queued / self._mean_slots), len(self._lent))
        if up == 0:
            return wanted
        if not self._overlap:
            return wanted if load.trainable_s <= 0 or 2 * load.queued > self._mean_slots else 0
        if load.trainable_s > 0 or now < self._given_back + LEAST_IDLE * (self._step_s or 0.0):
            return 0
        self._given_back = now
        return min(wanted, max(1, len(self._lent) // 4))

    def _lend(self, count: int, tickets: int, load: ElasticLoad, now: float) -> list[ElasticCommand]:
        """Those with the fewest tickets, so that little moves, as long as the others have slots for all."""
        here = [name for name in self._slots if name not in self._lent]
        room = sum(self._slots[name] for name in here) - tickets
        chosen: list[str] = []
        for name in sorted(here, key=lambda name: load.running.get(name, 0))[:count]:
            room -= self._slots[name]
            if room < 0:
                break
            chosen.append(name)
            self._lent[name] = now
        return [Lend(replica=name) for name in chosen]

    def _reclaim(self, count: int, now: float) -> list[ElasticCommand]:
        """Those that were lent first."""
        chosen = list(self._lent)[: max(0, count)]
        for name in chosen:
            del self._lent[name]
        return [Reclaim(replica=name) for name in chosen]
