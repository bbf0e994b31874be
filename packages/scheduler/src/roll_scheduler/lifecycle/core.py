"""The scheduler as a state machine without I/O: events in, commands out, time passed in.

`RolloutScheduler` runs it live; whatever else carries out the commands and reports the events can run it too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.command import Command, Cut, Drop
from roll_scheduler.lifecycle.flight import FlightGroup
from roll_scheduler.lifecycle.wiring import Wiring
from roll_scheduler.partial import VersionSpan
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.prompts.traits import NO_TRAITS, PromptTraits, checked_tag, checked_traits
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.reports.diagnosis import Diagnosis
from roll_scheduler.reports.reasons import Reasons
from roll_scheduler.reports.view import CoreView
from roll_scheduler.routers.router import Router
from roll_scheduler.snapshot import SchedulerSnapshot, cursor, snapshot_or_new
from roll_scheduler.ticket import PendingTicket, Ticket, TicketState, as_integer

__all__ = ["PauseMode", "SchedulerCore"]

PauseMode: TypeAlias = Literal["keep", "abort", "stop"]
"""What becomes of running generations in a pause, see `SchedulerCore.pause`."""


class SchedulerCore:
    """Decides what runs where and which groups make a batch.

    The methods from `open_batch` to `close` are the events; the commands they return are to be carried out in
    order. A result of an attempt that is no longer awaited (aborted, past its deadline) is ignored.

    Args:
        policy: Sizes and bounds.
        replicas: Slots by name, in the order of preference among equally loaded ones.
        run_seed: Seed that ticket seeds derive from.
        resume: Where to go on; None begins with group 0 at version 0.
        router: Which replica takes a ticket, instead of the policy's `router`; empty, and this core's alone.
        estimator: Predicts lengths; None makes a `LengthPredictor` where the policy needs one.
        traits: What is known of a group's prompt, by group id.
        tag: The tag of a group's environment, by group id, for the policy's `concurrency`.

    Raises:
        SchedulerError: If `replicas` is empty or one has no slot, the snapshot is of another configuration,
            or `tag` is missing while the policy limits environments.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        *,
        replicas: Mapping[str, int],
        run_seed: int = 0,
        resume: SchedulerSnapshot | None = None,
        router: Router | None = None,
        estimator: LengthEstimator | None = None,
        traits: Callable[[int], PromptTraits] | None = None,
        tag: Callable[[int], str] | None = None,
    ) -> None:
        start = snapshot_or_new(resume)
        self._fingerprint = {**policy.fingerprint(), "run_seed": str(run_seed)}
        start.check(self._fingerprint)
        self._policy = policy
        self._tag = tag
        self._traits = traits
        self._skipped = frozenset(start.resolved)
        self.next_group = start.first_group
        wiring = Wiring(
            policy,
            replicas=replicas,
            run_seed=run_seed,
            start=start,
            router=router,
            estimator=estimator,
            tagged=tag is not None,
            opened=self._opened,
        )
        self.ledger = wiring.ledger
        self._replicas, self._queue, self._departures = wiring.replicas, wiring.queue, wiring.departures
        self._quarantine, self._book, self._attempts = wiring.quarantine, wiring.book, wiring.attempts
        self._rounds, self._learned, self._idleness = wiring.rounds, wiring.learned, wiring.idleness
        self._overtaking = wiring.overtaking
        self._view = CoreView(wiring, Reasons(policy, wiring.replicas))
        self._paused_at: float | None = None

    @property
    def version(self) -> int:
        """Policy version that was published last."""
        return self._book.version

    @property
    def room(self) -> int:
        """Number of groups that may be admitted; 0 in a pause, without prompts, with too many failures."""
        return self._rounds.room

    @property
    def next_deadline(self) -> float | None:
        """Time at which `tick` next has something to do, None if nothing runs."""
        at = self._attempts.next_deadline
        if at is None:
            return self._idleness.expires_at
        look_at = None if self._overtaking is None else self._overtaking.next_at
        return at if look_at is None else min(at, look_at)

    def snapshot(self) -> SchedulerSnapshot:
        """Where a later core has to go on; groups that were delivered count as trained."""
        deferred = self._rounds.deferred
        first, resolved = cursor(self.next_group, [*self._book.groups, *deferred], self._skipped)
        return SchedulerSnapshot(
            first_group=first,
            resolved=resolved,
            deferred=deferred,
            version=self.version,
            ends=dict(self.ledger.ends),
            totals=self.ledger.totals_with(trained=self._rounds.training),
            suspects=self._quarantine.losses(self._book.groups.values()),
            grading_anchor_s=self._attempts.anchor_s,
            fingerprint=self._fingerprint,
            parts=self._learned.parts(),
        )

    def pass_over(self) -> bool:
        """Whether the next prompt's group ended before the resume; if so it is passed over."""
        if self.next_group not in self._skipped:
            return False
        self.next_group += 1
        return True

    def open_batch(self) -> None:
        """The consumer asks for the next batch: it is done with the one before. `refill` comes next."""
        self._rounds.open()

    def refill(self, now: float) -> list[Command]:
        """Sends out what may go without a new prompt: deferred groups where there is room, in their round or
        when no prompt is left, and what was stopped for the batch before."""
        commands, more = self._rounds.refill(now)
        return commands + self._dispatch(now) if more else commands

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
        self._rounds.admit(self.next_group, now)
        self.next_group += 1
        return self._dispatch(now)

    def exhaust(self) -> None:
        """There are no more prompts; refused where the resume's snapshot waits for one."""
        self._rounds.exhaust()

    def pause(self, mode: PauseMode, now: float) -> list[Command]:
        """From now on nothing is sent out and no prompt admitted, until `resume`. Grading goes on.

        Args:
            mode: What becomes of running generations. `"keep"`: they go on. `"abort"`: they are aborted and
                sent out again after the pause, a new attempt with the same seed, at no cost of a retry.
                `"stop"`, with partial rollouts: they are stopped and go on with what they have. A second
                pause may be of another mode.
            now: Time.

        Raises:
            SchedulerError: If the mode is not known, or `"stop"` without partial rollouts.
        """
        allowed = ("keep", "abort", "stop") if self._policy.partial else ("keep", "abort")
        if mode not in allowed:
            raise SchedulerError(
                f"pause: got mode {mode!r}, allowed is {', '.join(allowed)} with this policy"
            )
        self._rounds.paused = True
        if self._paused_at is None:
            self._paused_at = now
        if mode == "keep":
            return []
        running = self._book.running()
        if mode == "stop":
            return self._attempts.stop(running, "pause", now)
        self.ledger.totals["recalled"] += len(running)
        return self._attempts.call_back(running, "pause", now)

    def resume(self, now: float) -> list[Command]:
        """The pause is over; without one, nothing changes."""
        self._rounds.paused = False
        self._paused_at = None
        return self._dispatch(now)

    def replica_up(self, name: str, slots: int, now: float) -> list[Command]:
        """A replica joined."""
        self._replicas.up(name, slots)
        self._quarantine.up(name, slots)
        return self._dispatch(now)

    def replica_down(
        self, name: str, reason: str, now: float, *, returns: bool = False, planned: bool = False
    ) -> list[Command]:
        """A replica left or died: what runs on it is sent out again elsewhere, which costs no retry.

        Args:
            name: The replica.
            reason: For messages.
            now: Time.
            returns: Whether it comes back; tickets may wait for it even when no other is left.
            planned: It is wanted elsewhere and works still: nobody is suspected, and with partial rollouts
                what runs is stopped and goes on elsewhere with what it has.
        """
        self._replicas.down(name, reason, returns=returns)
        self._quarantine.down(name)
        self._queue.replica_down(name)
        running = self._departures.lost(name)
        leave = self._attempts.vacate if planned else self._attempts.lose_replica
        return leave(running, now) + self._dispatch(now)

    def replica_drains(self, name: str, now: float, *, on: bool = True) -> list[Command]:
        """A replica gets nothing new, or, with `on` False, takes its share again; what runs there goes on."""
        self._replicas.drain(name, on=on)
        self._queue.replica_drains(name)
        return self._dispatch(now)

    def generated(
        self,
        ticket: Ticket,
        *,
        tokens: int,
        oldest_version: int,
        truncated: bool,
        now: float,
        spans: Sequence[VersionSpan] = (),
    ) -> list[Command]:
        """A generation finished; the arguments are those of `Generated`.

        Raises:
            SchedulerError: With partial rollouts: if tokens and spans do not fit what is kept.
        """
        flight = self._book.awaited(ticket, TicketState.RUNNING)
        if flight is None:
            return []
        commands = self._attempts.generated(
            flight, tokens=tokens, oldest_version=oldest_version, truncated=truncated, now=now, spans=spans
        )
        return commands + self._dispatch(now)

    def stopped(
        self,
        ticket: Ticket,
        *,
        tokens: int,
        oldest_version: int,
        now: float,
        spans: Sequence[VersionSpan] = (),
    ) -> list[Command]:
        """A generation ended unfinished, with what it has; it goes on later. See `Generated`.

        Raises:
            SchedulerError: Without partial rollouts, or if tokens and spans do not fit what is kept.
        """
        flight = self._book.awaited(ticket, TicketState.RUNNING)
        if flight is None:
            return []
        commands = self._attempts.stopped(
            flight, tokens=tokens, oldest_version=oldest_version, now=now, spans=spans
        )
        return commands + self._dispatch(now)

    def graded(self, ticket: Ticket, *, value: float, now: float) -> list[Command]:
        """A grading finished."""
        flight = self._book.awaited(ticket, TicketState.GRADING)
        if flight is None:
            return []
        commands = self._attempts.graded(flight, value=value, now=now)
        # A slot is free only if something was aborted or a generation has to be tried again.
        return commands + self._dispatch(now) if commands else commands

    def failed(self, ticket: Ticket, kind: str, message: str, now: float) -> list[Command]:
        """A generation or grading ended without a result: that is tried again, then the member is dropped."""
        flight = self._book.awaited(ticket, TicketState.RUNNING, TicketState.GRADING)
        if flight is None:
            return []
        return self._attempts.failed(flight, kind, message, now) + self._dispatch(now)

    def reported(self, ticket: Ticket, tokens: int, now: float) -> None:
        """A running generation has so many tokens, with those of earlier parts: tells how fast it is.

        Raises:
            SchedulerError: If it is no integer >= 0.
        """
        tokens = as_integer(tokens, "reported")
        if tokens < 0:
            raise SchedulerError(f"reported: got {tokens} tokens of ticket {ticket.id}, allowed is >= 0")
        flight = self._book.awaited(ticket, TicketState.RUNNING)
        if flight is not None:
            flight.reported, flight.reported_at = max(tokens, flight.kept), now

    def publish(self, version: int, now: float) -> list[Command]:
        """New weights were published; groups that cannot be trained on any more are dropped or requeued.

        Raises:
            SchedulerError: If the version is no integer or lower than the current one.
        """
        version = as_integer(version, "publish")
        if version < self.version:
            raise SchedulerError(
                f"publish: got version {version}, allowed is at least the current {self.version}"
            )
        self._book.version = version
        return self._book.expire(now) + self._dispatch(now)

    def tick(self, now: float) -> list[Command]:
        """Time passed: attempts whose deadline is over are aborted and have failed with kind `"deadline"`;
        stragglers are looked for.

        Raises:
            DeadlineExceeded: Nothing has run for `wait_deadline_s`, although a batch is waited for.
        """
        expires_at = self._idleness.expires_at
        if expires_at is not None and expires_at <= now:
            raise self._view.stuck(now, paused_at=self._paused_at)
        commands = self._attempts.tick(now)
        if commands:
            commands += self._dispatch(now)
        return commands if self._overtaking is None else commands + self._overtaking.go(now)

    def take_batch(self, now: float = math.nan) -> Cut | None:
        """The next batch if it is complete; smaller, maybe empty, when the prompts are exhausted.

        Args:
            now: For the ages of what is aborted; NaN leaves those out of the metrics.

        Raises:
            TooManyFailures: More attempts failed since the last batch than `max_failures`.
            StarvationError: More groups were filtered or stale than `max_refills` batches' worth.
            SchedulerError: A ticket waits, no replica is left and none returns.
        """
        error = self.ledger.verdict(self._policy) or self._view.nowhere()
        if error is not None:
            raise error
        cut = self._rounds.take(now)
        self._idleness.note(cut is None and self._attempts.next_deadline is None, now)
        return cut

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
        return self._view.pending(now, most)

    def pending_count(self) -> int:
        """Number of tickets that are being waited for."""
        return self._view.pending_count()

    def why(self, now: float, *, most: int | None = None) -> Diagnosis:
        """What the tickets that are waited for wait for themselves, the one first that is longest in its
        state; at most `most`."""
        return self._view.why(now, paused_at=self._paused_at, most=most)

    def metrics(self, now: float) -> dict[str, float]:
        """Numbers of this moment and of the run, see `roll_scheduler.reports.metrics`."""
        return self._view.metrics(now)

    def _dispatch(self, now: float) -> list[Command]:
        commands: list[Command] = []
        while (placed := self._departures.next(now)) is not None:
            commands.append(self._attempts.start(*placed, now))
        if self._overtaking is not None:
            self._overtaking.arm(now)
        return commands

    def _opened(self, group: FlightGroup) -> None:
        group.tag = checked_tag(self._tag(group.id), group.id) if self._tag else ""
        group.traits = checked_traits(self._traits(group.id), group.id) if self._traits else NO_TRAITS
        self._quarantine.opened(group)
