"""The scheduler as a state machine without I/O: events in, commands out, time passed in.

`RolloutScheduler` runs it live; whatever else carries out the commands and reports the events can run it too.
"""

import math
from collections.abc import Mapping

from roll_scheduler.command import Abort, Command, Cut, Drop, Generate, Grade
from roll_scheduler.dispatch import DispatchQueue
from roll_scheduler.errors import SchedulerError
from roll_scheduler.flight import DeadlineQueue, Flight, longest_pending
from roll_scheduler.groups import GroupBook
from roll_scheduler.ledger import Ledger
from roll_scheduler.metrics import scheduler_metrics
from roll_scheduler.placement import ReplicaSlots
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.snapshot import SchedulerSnapshot, cursor
from roll_scheduler.staleness import admissible, may_train
from roll_scheduler.ticket import PendingTicket, Ticket, TicketState

__all__ = ["SchedulerCore"]


class SchedulerCore:
    """Decides what runs where and which groups make a batch.

    The methods from `open_batch` to `close` are the events; the commands they return are to be carried out in
    order. A result of an attempt that is no longer awaited (aborted, past its deadline) is ignored.

    Args:
        policy: Sizes and bounds.
        replicas: Slots by name, in the order of preference among equally loaded ones.
        run_seed: Seed that ticket seeds derive from.
        resume: Where to go on; None begins with group 0 at version 0.

    Raises:
        SchedulerError: If `replicas` is empty or one has no slot.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        replicas: Mapping[str, int],
        run_seed: int = 0,
        resume: SchedulerSnapshot | None = None,
    ) -> None:
        start = SchedulerSnapshot() if resume is None else resume
        self._policy = policy
        self._replicas = ReplicaSlots(replicas)
        self._skipped = frozenset(start.resolved)
        self.next_group = start.first_group
        self.version = start.version
        self.ledger = Ledger(ends=start.ends, totals=start.totals)
        self._exhausted = False
        self._in_training = 0
        self._collecting = False
        self._long_round = False
        self._book = GroupBook(policy, replicas=self._replicas, ledger=self.ledger, run_seed=run_seed)
        self._queue = DispatchQueue(self._replicas)
        self._generating = DeadlineQueue(TicketState.RUNNING, policy.generate_deadline_s)
        self._grading = DeadlineQueue(TicketState.GRADING, policy.grade_deadline_s)
        self._to_defer = dict.fromkeys(start.deferred, 1)

    @property
    def room(self) -> int:
        """Number of groups that may be admitted now; 0 when there are no prompts or too many failures."""
        if self._exhausted or self.ledger.verdict(self._policy) is not None:
            return 0
        return admissible(
            groups_per_batch=self._policy.groups_per_batch,
            max_staleness=self._policy.max_staleness,
            outstanding=len(self._book.groups) + self._in_training,
            extra=self._policy.extra_groups if self._speculates else 0,
        )

    @property
    def next_deadline(self) -> float | None:
        """Time at which `tick` next has something to do, None if nothing runs."""
        times = [at for at in (self._generating.next_at(), self._grading.next_at()) if at is not None]
        return min(times, default=None)

    def snapshot(self) -> SchedulerSnapshot:
        """Where a later core has to go on; groups that were delivered count as trained."""
        deferred = (*self._book.deferred, *self._to_defer)
        first, resolved = cursor(self.next_group, [*self._book.groups, *deferred], self._skipped)
        return SchedulerSnapshot(
            first_group=first,
            resolved=resolved,
            deferred=tuple(sorted(deferred)),
            version=self.version,
            ends=dict(self.ledger.ends),
            totals=dict(self.ledger.totals),
        )

    def pass_over(self) -> bool:
        """Whether the next prompt's group ended before the resume; if so it is passed over."""
        if self.next_group not in self._skipped:
            return False
        self.next_group += 1
        return True

    def open_batch(self) -> None:
        """The consumer asks for the next batch: it is done with the one before. `refill` comes next."""
        self._in_training = 0
        self._collecting = True
        waiting = len(self._book.deferred)
        self._long_round = waiting >= self._policy.groups_per_batch or (self._exhausted and waiting > 0)

    def refill(self, now: float) -> list[Command]:
        """Sends deferred groups out again where there is room: in their round, or when no prompt is left."""
        if not (self._collecting and self._book.deferred and (self._long_round or self._exhausted)):
            return []
        self._long_round = True
        while self._book.deferred and len(self._book.groups) < self._policy.groups_per_batch:
            group_id = next(iter(self._book.deferred))
            attempt = self._book.deferred.pop(group_id)
            self._queue.extend(
                self._book.open(group_id, now, members=self._policy.group_size, attempt=attempt)
            )
        return self._dispatch(now)

    def admit(self, now: float) -> list[Command]:
        """The next prompt was taken; its group is the `next_group` of before this call.

        A group that was deferred before a resume waits for its long round.

        Raises:
            SchedulerError: If there is no room.
        """
        if self.room == 0:
            raise SchedulerError(
                f"group {self.next_group} cannot be admitted: {len(self._book.groups)} are outstanding"
            )
        group_id, self.next_group = self.next_group, self.next_group + 1
        if group_id in self._to_defer:
            self._book.deferred[group_id] = self._to_defer.pop(group_id)
            return []
        members = self._policy.group_size + (self._policy.extra_members if self._speculates else 0)
        self._queue.extend(self._book.open(group_id, now, members=members))
        return self._dispatch(now)

    def exhaust(self) -> None:
        """There are no more prompts."""
        self._exhausted = True

    def replica_up(self, name: str, slots: int, now: float) -> list[Command]:
        """A replica joined."""
        self._replicas.up(name, slots)
        return self._dispatch(now)

    def replica_down(self, name: str, reason: str, now: float, *, returns: bool = False) -> list[Command]:
        """A replica left or died: what runs on it is sent out again elsewhere, which costs no retry.

        If it `returns`, tickets may wait for it even when no other is left.
        """
        self._replicas.down(name, reason, returns=returns)
        commands: list[Command] = []
        orphans = [flight for flight in self._book.flights.values() if flight.replica == name]
        for flight in orphans:
            commands.append(Abort(ticket=flight.ticket, reason="replica"))
            self._book.next_attempt(flight, TicketState.WAITING, now)
        self._queue.take_back(orphans)
        self.ledger.totals["redispatched"] += len(orphans)
        return commands + self._dispatch(now)

    def generated(
        self, ticket: Ticket, *, tokens: int, oldest_version: int, truncated: bool, now: float
    ) -> list[Command]:
        """A generation finished."""
        flight = self._book.awaited(ticket, TicketState.RUNNING)
        if flight is None:
            return []
        self._book.leave_replica(flight)
        flight.took = now - flight.since
        self.ledger.totals["tokens"] += tokens
        sent_at, flight.oldest, flight.truncated = flight.oldest, oldest_version, truncated
        if sent_at != oldest_version:
            self._book.ages.changed(flight.group)
        if not self._fresh(oldest_version):
            flight.state = TicketState.READY
            return self._book.drop(flight.group, "stale", now) + self._dispatch(now)
        return [self._start_grading(flight, now), *self._dispatch(now)]

    def graded(self, ticket: Ticket, *, value: float, now: float) -> list[Command]:
        """A grading finished."""
        flight = self._book.awaited(ticket, TicketState.GRADING)
        if flight is None:
            return []
        if not math.isfinite(value):
            return self.failed(ticket, "value", f"the reward of ticket {ticket.id} is {value}", now)
        flight.value = value
        flight.state = TicketState.READY
        return self._book.settle(flight, now) + self._dispatch(now)

    def failed(self, ticket: Ticket, kind: str, message: str, now: float) -> list[Command]:
        """A generation or grading ended without a result: that is tried again, then the member is dropped."""
        flight = self._book.awaited(ticket, TicketState.RUNNING, TicketState.GRADING)
        if flight is None:
            return []
        self.ledger.failure(kind, message)
        flight.failures += 1
        again = flight.failures <= self._policy.retries
        if again:
            self.ledger.totals["retried"] += 1
        if flight.state is TicketState.GRADING and again:
            self._book.next_attempt(flight, TicketState.GRADING, now)
            return [self._start_grading(flight, now)]
        if flight.replica is not None:
            flight.avoid |= {flight.replica}
            self._book.leave_replica(flight)
        if again:
            self._book.next_attempt(flight, TicketState.WAITING, now)
            self._queue.retry(flight)
            return self._dispatch(now)
        return self._book.lose(flight, now) + self._dispatch(now)

    def publish(self, version: int, now: float) -> list[Command]:
        """New weights were published; groups that cannot be trained on any more are dropped.

        Raises:
            SchedulerError: If the version is lower than the current one.
        """
        if version < self.version:
            raise SchedulerError(
                f"publish: got version {version}, allowed is at least the current {self.version}"
            )
        self.version = version
        commands: list[Command] = []
        for group in list(self._book.groups.values()):
            sampled_at = group.sampled_at()
            if sampled_at is None or self._fresh(sampled_at):
                continue
            commands += self._book.drop(group, "stale", now)
        return commands + self._dispatch(now)

    def tick(self, now: float) -> list[Command]:
        """Time passed: attempts whose deadline is over are aborted and have failed with kind `"deadline"`."""
        commands: list[Command] = []
        for queue, doing in ((self._generating, "generation"), (self._grading, "grading")):
            for flight in queue.pop_expired(now):
                ticket = flight.ticket
                if flight.state not in (TicketState.RUNNING, TicketState.GRADING):
                    continue
                where = "" if flight.replica is None else f" on replica {flight.replica!r}"
                message = f"{doing} of ticket {ticket.id} took longer than {queue.seconds} s{where}"
                commands.append(Abort(ticket=ticket, reason="deadline"))
                commands += self.failed(ticket, "deadline", message, now)
        return commands

    def take_batch(self, now: float = math.nan) -> Cut | None:
        """The next batch if it is complete; smaller, maybe empty, when the prompts are exhausted.

        Args:
            now: For the ages of what is aborted; NaN leaves those out of the metrics.

        Raises:
            TooManyFailures: More attempts failed since the last batch than `max_failures`.
            StarvationError: More groups were filtered or stale than `max_refills` batches' worth.
            SchedulerError: A ticket waits, no replica is left and none returns.
        """
        self._check()
        book, wanted = self._book, self._policy.groups_per_batch
        last = self._exhausted and len(book.ready) == len(book.groups) and not book.deferred
        if len(book.ready) < wanted and not last:
            return None
        if book.ages.must_wait(self.version, self._policy):
            return None
        oldest_first = sorted(book.ready.values(), key=lambda group: (group.oldest, group.id))
        chosen = sorted(group.id for group in oldest_first[:wanted])
        self._in_training, self._collecting = len(chosen), False
        return book.cut(chosen, self.version, now, leave=self._policy.max_staleness > 0)

    def close(self) -> list[Command]:
        """Ends every ticket that has not ended."""
        commands: list[Command] = []
        for group in list(self._book.groups.values()):
            commands += self._book.drop(group, "closed", math.nan)
        for group_id in self._book.deferred:
            self.ledger.drop("closed")
            commands.append(Drop(group=group_id, reason="closed"))
        self._book.deferred.clear()
        return commands

    def pending(self, now: float, *, most: int | None = None) -> list[PendingTicket]:
        """Tickets that are being waited for, the one that is longest in its state first; at most `most`."""
        return [flight.pending(now) for flight in longest_pending(self._book.flights.values(), most)]

    def pending_count(self) -> int:
        """Number of tickets that are being waited for."""
        return sum(flight.state is not TicketState.READY for flight in self._book.flights.values())

    def metrics(self, now: float) -> dict[str, float]:
        """Numbers of this moment and of the run, named `scheduler/...`."""
        return scheduler_metrics(
            self.pending(now),
            self.ledger.totals,
            {
                "outstanding_groups": float(len(self._book.groups)),
                "ready_groups": float(len(self._book.ready)),
                "waiting_long_groups": float(len(self._book.deferred)),
                "replicas": float(len(self._replicas)),
                "staleness": self._book.mean_staleness,
                **self.ledger.length_bias(),
            },
        )

    def _dispatch(self, now: float) -> list[Command]:
        commands: list[Command] = []
        while (placed := self._queue.pop()) is not None:
            commands.append(self._start(*placed, now))
        return commands

    def _start(self, flight: Flight, replica: str, now: float) -> Generate:
        flight.state, flight.replica, flight.since = TicketState.RUNNING, replica, now
        flight.oldest = self.version
        self._book.ages.sent(flight.group, self.version)
        self._generating.push(flight, now)
        return Generate(ticket=flight.ticket, replica=replica)

    def _start_grading(self, flight: Flight, now: float) -> Grade:
        flight.state, flight.since = TicketState.GRADING, now
        self._grading.push(flight, now)
        return Grade(ticket=flight.ticket)

    @property
    def _speculates(self) -> bool:
        """Whether what is admitted now may be more than needed: in an asynchronous run always, otherwise in
        the short rounds."""
        if self._policy.over_provision is None:
            return False
        return self._policy.max_staleness > 0 or (self._collecting and not self._long_round)

    def _fresh(self, oldest_version: int) -> bool:
        return may_train(
            version=self.version, oldest_version=oldest_version, max_staleness=self._policy.max_staleness
        )

    def _check(self) -> None:
        error = self.ledger.verdict(self._policy)
        if error is not None:
            raise error
        if len(self._replicas) or self._replicas.returning:
            return
        waiting = sum(flight.state is TicketState.WAITING for flight in self._book.flights.values())
        if waiting:
            lost = ", ".join(f"replica {name!r} ({reason})" for name, reason in self._replicas.lost.items())
            raise SchedulerError(f"no replica is left and {waiting} tickets wait for one; lost: {lost}")
