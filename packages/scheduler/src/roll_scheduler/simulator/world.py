"""The scheduler's core in virtual time: modelled engines, graders and a trainer carry out its commands.

It is the `SchedulerCore` that `RolloutScheduler` runs live, with the same events, so that whatever a
`SchedulerPolicy` can do can be simulated. `simulate` runs it.
"""

import heapq
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from roll_scheduler.lifecycle.command import Abort, Command, Cut, Defer, Deliver, Drop, Generate, Grade, Stop
from roll_scheduler.lifecycle.core import SchedulerCore
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.rounds.staleness import staleness
from roll_scheduler.simulator.engine_model import Sequence
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.fleet import Fleet
from roll_scheduler.simulator.result import Delivered, Meter, SimulationResult
from roll_scheduler.simulator.setting import ReplicaFailure, Setting
from roll_scheduler.ticket import Ticket

__all__ = ["Running", "World"]

RESENT = ("deadline", "replica", "duplicate")
"""Reasons of an abort after which the ticket goes on, or may be sent out again."""


class Running:
    """A ticket on a replica or with its environment.

    Attributes:
        ends: Tokens of the completion at the end of each turn.
        turn: Turns that are over.
        in_engine: Whether its replica has it; otherwise its environment does, up to `back_at`.
        oldest: Version of the first token of earlier parts, None if there is none.
    """

    __slots__ = ("back_at", "ends", "in_engine", "oldest", "replica", "sequence", "ticket", "turn")

    def __init__(self, ticket: Ticket, replica: int, sequence: Sequence, ends: list[int]) -> None:
        self.ticket = ticket
        self.replica = replica
        self.sequence = sequence
        self.ends = ends
        self.turn = 0
        self.in_engine = True
        self.back_at = 0.0
        self.oldest: int | None = None


class Complete(NamedTuple):
    """A completion that waits for its group: its tokens and the version of the first of them."""

    tokens: int
    version: int


class World:
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
        estimator: LengthEstimator | None = None,
    ) -> None:
        self._setting = setting
        self._workload = setting.workload
        self._slots = [slots or engine.slots for engine in setting.engines]
        self._index = {f"replica {index}": index for index in range(len(setting.engines))}
        replicas = dict(zip(self._index, self._slots, strict=True))
        self._policy = policy
        self._core = SchedulerCore(
            policy,
            replicas=replicas,
            run_seed=run_seed,
            estimator=estimator,
            traits=self._workload.traits,
        )
        self._names: dict[int, tuple[int, int]] | None = {} if record_spans else None
        self._groups = groups
        self._fleet = Fleet(setting.engines, record_spans=record_spans)
        self._meter = Meter(setting, self._fleet)
        self._now = 0.0
        self._running: dict[int, Running] = {}
        self._complete: dict[int, dict[int, Complete]] = {}
        self._stopped: dict[int, list[int]] = {}
        self._parts: dict[int, Running] = {}
        self._published = [0.0]
        self._grading: dict[int, int] = {}
        self._graded_of: Counter[int] = Counter()
        # Most events neither make room nor complete a batch: only after others the core is asked for them.
        self._look = True
        self._irregular = False
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
            if self._look or self._irregular:
                self._look = False
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
        now = min(self._fleet.next_at(), planned, math.inf if deadline is None else deadline, self._also_at())
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
            commands = self._core.tick(self._now)
            # From now on groups may be complete with fewer members than they should have.
            self._irregular = self._irregular or any(isinstance(command, Abort) for command in commands)
            self._carry_out(commands)

    def _also_at(self) -> float:
        """Further moments at which something happens."""
        return math.inf

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
                case Stop(ticket=ticket):
                    todo.extend(self._stop(ticket))
                case Defer(group=group):
                    self._forget(group, deferred=True)
                case Drop(group=group):
                    self._forget(group, deferred=False)

    def _generate(self, ticket: Ticket, replica: int) -> None:
        if self._names is not None:
            self._names[ticket.id] = self._names[~ticket.id] = (ticket.group, ticket.member)
        workload = self._workload
        part = self._parts.pop(ticket.id, None) if self._parts else None
        if part is not None and ticket.continues:
            self._go_on(part, ticket, replica)
            return
        if part is not None:
            self._meter.stopped(part.sequence.done)
        ends = workload.turn_ends(workload.tokens(ticket.group, ticket.member))
        # Of two attempts of one ticket that run at a time, the second has a key of its own.
        key = ticket.id if ticket.id not in self._running else ~ticket.id
        sequence = Sequence(key, group=ticket.group, tokens=ends[0], prompt=workload.prompt_tokens)
        self._running[key] = Running(ticket, replica, sequence, ends)
        self._fleet.submit(replica, sequence, self._now)

    def _go_on(self, part: Running, ticket: Ticket, replica: int) -> None:
        """A completion that was stopped goes on with its tokens, whose KV is computed again."""
        before = part.sequence
        sequence = Sequence(
            ticket.id, group=ticket.group, tokens=before.tokens, prompt=before.prompt, done=before.done
        )
        running = Running(ticket, replica, sequence, part.ends)
        running.turn, running.oldest = part.turn, part.oldest
        self._running[ticket.id] = running
        if part.in_engine:
            self._fleet.submit(replica, sequence, self._now)
        else:
            running.in_engine = False
            running.back_at = max(self._now, part.back_at)
            self._at(running.back_at, partial(self._next_turn, running))

    def _stop(self, ticket: Ticket) -> list[Command]:
        """A completion ends with what it has, or whole if its last iteration is over by then."""
        running = self._find(ticket)
        # The end of another one that was to stop may have completed its group meanwhile.
        if running is None:
            return []
        sequence = running.sequence
        if running.in_engine:
            self._fleet.remove(running.replica, sequence, self._now)
            if sequence.done >= sequence.tokens:
                self._turn_ended(sequence)
                if sequence.key not in self._running:
                    return []
        del self._running[sequence.key]
        self._parts[ticket.id] = running
        oldest = self._sampled_at(sequence)
        if sequence.done > ticket.continues:
            running.oldest = oldest if running.oldest is None else min(running.oldest, oldest)
        return self._core.stopped(ticket, tokens=sequence.done, oldest_version=oldest, now=self._now)

    def _find(self, ticket: Ticket) -> Running | None:
        """An attempt that runs, None if it does not."""
        for key in (ticket.id, ~ticket.id):
            running = self._running.get(key)
            if running is not None and running.ticket.attempt == ticket.attempt:
                return running
        return None

    def _sampled_at(self, sequence: Sequence) -> int:
        """Version of the first token that a sequence got on its replica."""
        started_at = self._now if sequence.started_at is None else sequence.started_at
        return bisect_right(self._published, started_at) - 1

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
        running.back_at = self._now + self._workload.environment_s(
            ticket.group, ticket.member, running.turn - 1
        )
        self._at(running.back_at, partial(self._next_turn, running))

    def _next_turn(self, running: Running) -> None:
        if self._running.get(running.sequence.key) is running:
            running.sequence.tokens = running.ends[running.turn]
            running.in_engine = True
            self._fleet.submit(running.replica, running.sequence, self._now)

    def _generated(self, running: Running) -> None:
        ticket = running.ticket
        del self._running[running.sequence.key]
        tokens, version = running.ends[-1], self._sampled_at(running.sequence)
        oldest = version if running.oldest is None else min(version, running.oldest)
        self._complete.setdefault(ticket.group, {})[ticket.member] = Complete(tokens, oldest)
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
        self._grading[ticket.id] = ticket.attempt
        self._at(self._now + seconds, partial(self._grading_ended, ticket))
        return []

    def _grading_ended(self, ticket: Ticket) -> None:
        if self._grading.get(ticket.id) == ticket.attempt:
            del self._grading[ticket.id]
            self._carry_out(self._graded(ticket))

    def _graded(self, ticket: Ticket) -> list[Command]:
        value = self._workload.value(ticket.group, ticket.member)
        self._graded_of[ticket.group] += 1
        if self._graded_of[ticket.group] >= self._policy.group_size:
            self._look = True
        return self._core.graded(ticket, value=value, now=self._now)

    def _abort(self, ticket: Ticket, reason: str) -> None:
        running = self._find(ticket)
        if running is None:
            self._grading.pop(ticket.id, None)
            if self._parts and (part := self._parts.pop(ticket.id, None)) is not None:
                self._meter.stopped(part.sequence.done)
            return
        del self._running[running.sequence.key]
        # A replica that died or was lent has given back what it had, but may have been sent this since.
        if running.in_engine:
            self._fleet.remove(running.replica, running.sequence, self._now)
        self._meter.stopped(running.sequence.done)
        if reason not in RESENT:
            self._stopped.setdefault(ticket.group, []).append(running.ends[-1])

    def _forget(self, group: int, *, deferred: bool) -> None:
        """A group ended without being delivered; if it is deferred, its completions will come again."""
        self._look = True
        self._graded_of.pop(group, None)
        for item in self._complete.pop(group, {}).values():
            self._meter.refused(item.tokens, left_out=not deferred)
        stopped = self._stopped.pop(group, [])
        self._meter.left_out.extend([] if deferred else stopped)

    def _die(self, failure: ReplicaFailure) -> None:
        name = f"replica {failure.replica}"
        self._look = True
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
            end = self._fleet.stall(self._now, seconds + 2 * self._setting.switch_s)
        self._at(end, partial(self._trained, delivered, cut_at=self._now, train_s=seconds))

    def _kept(self, delivery: Deliver, version: int) -> list[Delivered]:
        complete = self._complete.pop(delivery.group)
        self._graded_of.pop(delivery.group, None)
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
        self._opened, self._asking, self._look = self._now, True, True
