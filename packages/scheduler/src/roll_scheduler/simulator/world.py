"""The scheduler's core in virtual time: modelled engines, graders and a trainer carry out its commands.

It is the `SchedulerCore` that `RolloutScheduler` runs live, with the same events, so that whatever a
`SchedulerPolicy` can do can be simulated.
"""

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from roll_scheduler.command import Abort, Command, Cut, Defer, Deliver, Drop, Generate, Grade
from roll_scheduler.core import SchedulerCore
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.simulator.engine_model import Sequence
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.fleet import Fleet
from roll_scheduler.simulator.result import Delivered, Meter, SimulationResult
from roll_scheduler.simulator.setting import ReplicaFailure, Setting
from roll_scheduler.staleness import staleness
from roll_scheduler.ticket import Ticket

__all__ = ["simulate"]

RESENT = ("deadline", "replica")
"""Reasons of an abort after which the ticket may be sent out again."""


def simulate(
    setting: Setting,
    policy: SchedulerPolicy,
    *,
    steps: int,
    name: str = "core",
    groups: int | None = None,
    slots: int | None = None,
    run_seed: int = 0,
    record_spans: bool = False,
) -> SimulationResult:
    """Runs the scheduler's core for some training steps.

    At `max_staleness` 0 the steps follow each other; above, replicas generate on while a trainer with devices
    of its own trains, or go on after it where it shares theirs.

    Args:
        setting: Workload and devices.
        policy: What the core may do; `Setting.policy` makes one without deadlines.
        steps: Training steps, >= 1.
        name: What the result is called.
        groups: Prompts there are; None is without end. The run ends when they are used up.
        slots: Tickets that the core sends to a replica at a time; None is as many as the engine has slots.
            What is more waits in the engine.
        run_seed: Seed of the core.
        record_spans: Whether the result has `spans`.

    Raises:
        SimulationError: If the sizes of policy and setting differ, a number is out of its range, or nothing
            can happen any more.
        SchedulerError: What the core raises: starvation, too many failures, no replica left.
    """
    sizes = (policy.groups_per_batch, policy.group_size)
    if sizes != (setting.groups_per_batch, setting.group_size):
        raise SimulationError(
            f"simulate: the policy has {sizes[0]} groups of {sizes[1]}, the setting "
            f"{setting.groups_per_batch} of {setting.group_size}; allowed are equal sizes (Setting.policy)"
        )
    for what, value in (("steps", steps), ("groups", groups), ("slots", slots)):
        if value is not None and value < 1:
            raise SimulationError(f"simulate: got {what}={value}, allowed is >= 1")
    world = _World(setting, policy, groups=groups, slots=slots, run_seed=run_seed, record_spans=record_spans)
    world.run(steps)
    return world.result(name)


class _Running:
    """A ticket on a replica or with its environment.

    Attributes:
        ends: Tokens of the completion at the end of each turn.
        turn: Turns that are over.
        in_engine: Whether its replica has it.
    """

    __slots__ = ("ends", "in_engine", "replica", "sequence", "ticket", "turn")

    def __init__(self, ticket: Ticket, replica: int, sequence: Sequence, ends: list[int]) -> None:
        self.ticket = ticket
        self.replica = replica
        self.sequence = sequence
        self.ends = ends
        self.turn = 0
        self.in_engine = True


class _Complete(NamedTuple):
    """A completion that waits for its group: its tokens and the version of the first of them."""

    tokens: int
    version: int


class _World:
    """One simulation."""

    def __init__(
        self,
        setting: Setting,
        policy: SchedulerPolicy,
        *,
        groups: int | None,
        slots: int | None,
        run_seed: int,
        record_spans: bool,
    ) -> None:
        self._setting = setting
        self._workload = setting.workload
        self._slots = [slots or engine.slots for engine in setting.engines]
        self._index = {f"replica {index}": index for index in range(len(setting.engines))}
        replicas = dict(zip(self._index, self._slots, strict=True))
        self._core = SchedulerCore(policy, replicas=replicas, run_seed=run_seed)
        self._names: dict[int, tuple[int, int]] | None = {} if record_spans else None
        self._groups = groups
        self._fleet = Fleet(setting.engines, record_spans=record_spans)
        self._meter = Meter(setting, self._fleet)
        self._now = 0.0
        self._running: dict[int, _Running] = {}
        self._complete: dict[int, dict[int, _Complete]] = {}
        self._stopped: dict[int, list[int]] = {}
        self._published = [0.0]
        self._asking = True
        self._opened = 0.0
        self._ended = False
        self._timeline: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for failure in setting.failures:
            self._at(failure.at_s, partial(self._die, failure))

    def run(self, steps: int) -> None:
        """Runs until that many steps are done or the prompts are used up."""
        self._core.open_batch()
        while len(self._meter.steps) < steps and not self._ended:
            self._admit()
            if self._asking and (cut := self._core.take_batch(self._now)) is not None:
                self._train(cut)
                continue
            self._advance()

    def result(self, name: str) -> SimulationResult:
        """What the run was like."""
        return SimulationResult(
            policy=name,
            recreation=False,
            setting=self._setting,
            steps=tuple(self._meter.steps),
            groups=tuple(self._meter.groups),
            spans=self._meter.spans(self._names or {}),
        )

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._timeline, (when, next(self._order), event))

    def _advance(self) -> None:
        """Goes to the next moment at which something happens and lets it happen."""
        deadline = self._core.next_deadline
        planned = self._timeline[0][0] if self._timeline else math.inf
        now = min(self._fleet.next_at(), planned, math.inf if deadline is None else deadline)
        if now == math.inf:
            raise SimulationError(
                f"simulate: nothing can happen any more at {self._now:.3f} s in step "
                f"{len(self._meter.steps)}, {self._core.pending_count()} tickets are waited for"
            )
        self._now = max(self._now, now)
        for _, sequence in self._fleet.advance(self._now):
            self._turn_ended(sequence)
        while self._timeline and self._timeline[0][0] <= self._now:
            heapq.heappop(self._timeline)[2]()
        if deadline is not None and deadline <= self._now:
            self._carry_out(self._core.tick(self._now))

    def _admit(self) -> None:
        self._carry_out(self._core.refill(self._now))
        while self._core.room > 0:
            if self._groups is not None and self._core.next_group >= self._groups:
                self._core.exhaust()
                self._carry_out(self._core.refill(self._now))
                return
            self._carry_out(self._core.admit(self._now))

    def _carry_out(self, commands: Iterable[Command]) -> None:
        todo = list(commands)
        for command in todo:  # grading that takes no time adds to it
            match command:
                case Generate(ticket=ticket, replica=replica):
                    self._generate(ticket, self._index[replica])
                case Grade(ticket=ticket):
                    todo.extend(self._grade(ticket))
                case Abort(ticket=ticket, reason=reason):
                    self._abort(ticket, reason)
                case Defer(group=group):
                    self._forget(group, deferred=True)
                case Drop(group=group):
                    self._forget(group, deferred=False)

    def _generate(self, ticket: Ticket, replica: int) -> None:
        if self._names is not None:
            self._names[ticket.id] = (ticket.group, ticket.member)
        ends = self._workload.turn_ends(self._workload.tokens(ticket.group, ticket.member))
        sequence = Sequence(
            ticket.id, group=ticket.group, tokens=ends[0], prompt=self._workload.prompt_tokens
        )
        self._running[ticket.id] = _Running(ticket, replica, sequence, ends)
        self._fleet.submit(replica, sequence, self._now)

    def _turn_ended(self, sequence: Sequence) -> None:
        running = self._running.get(sequence.key)
        # A ticket that was aborted at this very moment, by another one's end, may be here still.
        if running is None or running.sequence is not sequence:
            return
        running.in_engine = False
        running.turn += 1
        ticket = running.ticket
        if running.turn == len(running.ends):
            self._generated(running)
            return
        seconds = self._workload.environment_s(ticket.group, ticket.member, running.turn - 1)
        self._at(self._now + seconds, partial(self._next_turn, running))

    def _next_turn(self, running: _Running) -> None:
        if self._running.get(running.ticket.id) is running:
            running.sequence.tokens = running.ends[running.turn]
            running.in_engine = True
            self._fleet.submit(running.replica, running.sequence, self._now)

    def _generated(self, running: _Running) -> None:
        ticket, started_at = running.ticket, running.sequence.started_at
        del self._running[ticket.id]
        tokens = running.ends[-1]
        version = bisect_right(self._published, self._now if started_at is None else started_at) - 1
        self._complete.setdefault(ticket.group, {})[ticket.member] = _Complete(tokens, version)
        self._carry_out(
            self._core.generated(
                ticket,
                tokens=tokens,
                oldest_version=version,
                truncated=tokens >= self._workload.lengths.cap,
                now=self._now,
            )
        )

    def _grade(self, ticket: Ticket) -> list[Command]:
        seconds = self._workload.reward_s(ticket.group, ticket.member)
        if seconds == 0:
            return self._graded(ticket)
        self._at(self._now + seconds, lambda: self._carry_out(self._graded(ticket)))
        return []

    def _graded(self, ticket: Ticket) -> list[Command]:
        value = self._workload.value(ticket.group, ticket.member)
        return self._core.graded(ticket, value=value, now=self._now)

    def _abort(self, ticket: Ticket, reason: str) -> None:
        running = self._running.pop(ticket.id, None)
        if running is None:
            return
        # A replica that died has given everything back already.
        if running.in_engine and reason != "replica":
            self._fleet.remove(running.replica, running.sequence, self._now)
        self._meter.stopped(running.sequence.done)
        if reason not in RESENT:
            self._stopped.setdefault(ticket.group, []).append(running.ends[-1])

    def _forget(self, group: int, *, deferred: bool) -> None:
        """A group ended without being delivered; if it is deferred, its completions will come again."""
        for item in self._complete.pop(group, {}).values():
            self._meter.refused(item.tokens, left_out=not deferred)
        stopped = self._stopped.pop(group, [])
        self._meter.left_out.extend([] if deferred else stopped)

    def _die(self, failure: ReplicaFailure) -> None:
        name = f"replica {failure.replica}"
        self._fleet.restart(failure.replica, self._now)
        returns = failure.back_s is not None
        self._carry_out(self._core.replica_down(name, "died", self._now, returns=returns))
        if failure.back_s is not None:
            self._at(failure.back_s, partial(self._come_back, failure.replica))

    def _come_back(self, replica: int) -> None:
        name = f"replica {replica}"
        self._carry_out(self._core.replica_up(name, self._slots[replica], self._now))

    def _train(self, cut: Cut) -> None:
        self._asking = False
        if not cut.deliveries:
            self._ended = True
            return
        delivered = [item for delivery in cut.deliveries for item in self._kept(delivery, cut.version)]
        self._carry_out(cut.commands)
        seconds = self._setting.train_s(len(delivered))
        end = self._now + seconds
        if self._setting.trainer.colocated:
            end = self._fleet.stall(self._now, seconds)
        self._at(end, partial(self._trained, delivered, cut_at=self._now, train_s=seconds))

    def _kept(self, delivery: Deliver, version: int) -> list[Delivered]:
        complete = self._complete.pop(delivery.group)
        kept = []
        for ticket in delivery.members:
            tokens, sampled_at = complete.pop(ticket.member)
            age = staleness(version=version, oldest_version=sampled_at)
            kept.append(Delivered(group=ticket.group, member=ticket.member, tokens=tokens, staleness=age))
        for surplus in complete.values():
            self._meter.refused(surplus.tokens)
        self._meter.left_out.extend(self._stopped.pop(delivery.group, []))
        return kept

    def _trained(self, delivered: list[Delivered], *, cut_at: float, train_s: float) -> None:
        end = self._fleet.stall(self._now, self._setting.sync_s, sync=True)
        self._at(end, partial(self._synchronised, delivered, cut_at=cut_at, train_s=train_s))

    def _synchronised(self, delivered: list[Delivered], *, cut_at: float, train_s: float) -> None:
        self._published.append(self._now)
        self._meter.close(delivered, opened=self._opened, cut=cut_at, train_s=train_s, end=self._now)
        self._carry_out(self._core.publish(self._core.version + 1, self._now))
        self._core.open_batch()
        self._opened, self._asking = self._now, True
