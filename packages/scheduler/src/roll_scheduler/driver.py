"""The live scheduler: runs the core on asyncio, with the caller's functions as the work.

The trainer's loop calls `next_batch` and `publish`; a watchdog calls `pending` and `metrics`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from roll_scheduler.batch import Batch, Generated, Graded, Group, Member
from roll_scheduler.command import Abort, Command, Cut, Defer, Deliver, Drop, Generate, Grade
from roll_scheduler.core import SchedulerCore
from roll_scheduler.errors import DeadlineExceeded, SchedulerError, TicketFailed
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.snapshot import SchedulerSnapshot
from roll_scheduler.ticket import PendingTicket, Ticket

__all__ = ["RolloutScheduler"]

P = TypeVar("P")
C = TypeVar("C")
S = TypeVar("S")

CLOSE_DEADLINE_S = 10.0
SHORTEST_TIMER_S = 0.001
TICKETS_AT_ONCE = 512
"""Tickets that are admitted before the event loop turns: starting each may take part of a millisecond."""

logger = logging.getLogger(__name__)


class RolloutScheduler(Generic[P, C, S]):
    """Schedules generation and grading of groups and returns them in batches.

    Every completion is a task of its own. With at least as many slots as tickets the tasks start group by
    group, member by member: the first 512 before anything is awaited, as many in each later turn of the event
    loop. Use it as an async context manager, or call `aclose`.

    Args:
        prompts: Taken one by one, as there is room; each occurrence makes a group.
        generate: Called with ticket, prompt and replica name. Raises `TicketFailed` if there is no result.
            A cancelled call should stop the generation.
        grade: Called with ticket, prompt and completion. Raises `TicketFailed` if there is no verdict.
        replicas: Slots (tickets at a time) by name.
        policy: Sizes and bounds.
        run_seed: Seed that ticket seeds derive from.
        resume: A snapshot to go on from; `prompts` then begins with that of its `first_group`.
        clock: Seconds, monotonic; deadlines and ages are measured by it.

    Raises:
        SchedulerError: If `replicas` is empty or one has no slot.
    """

    def __init__(
        self,
        *,
        prompts: Iterable[P],
        generate: Callable[[Ticket, P, str], Awaitable[Generated[C]]],
        grade: Callable[[Ticket, P, C], Awaitable[Graded[S]]],
        replicas: Mapping[str, int],
        policy: SchedulerPolicy,
        run_seed: int = 0,
        resume: SchedulerSnapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = SchedulerCore(policy, replicas=replicas, run_seed=run_seed, resume=resume)
        self._group_size = policy.group_size
        self._prompts: Iterator[P] = iter(prompts)
        self._generate = generate
        self._grade = grade
        self._clock = clock
        self._prompt_of: dict[int, P] = {}
        self._generated: dict[int, dict[int, Generated[C]]] = {}
        self._graded: dict[int, dict[int, Graded[S]]] = {}
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._aborted: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._admission: asyncio.Handle | None = None
        self._error: Exception | None = None
        self._started = False
        self._collecting = False
        self._closed = False
        self._at_close: SchedulerSnapshot | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stuck = await self._stop()
        if stuck and error is None:
            raise _ignored_cancellation(stuck)

    def snapshot(self) -> SchedulerSnapshot:
        """Where a later scheduler has to go on; of a closed one, as it was when it was closed.

        Groups that were delivered count as trained, so take it between the training of a batch and the next
        `next_batch`; what is pending then is generated again.
        """
        return self._at_close or self._core.snapshot()

    async def next_batch(self) -> Batch[P, C, S]:
        """The next `groups_per_batch` complete groups; fewer, maybe none, when the prompts are exhausted.

        If it raises or is cancelled, the scheduler is closed and none of its tasks is left running.

        Raises:
            TooManyFailures: More attempts failed than `max_failures`.
            StarvationError: More groups were filtered or stale than `max_refills` batches' worth.
            SchedulerError: No replica is left, `generate` or `grade` raised something else than
                `TicketFailed` or returned something else than their records, the scheduler is closed, or
                another call is waiting. What a filter or `prompts` raises comes through as it is.
        """
        if self._closed:
            raise SchedulerError("next_batch: the scheduler is closed")
        if self._collecting:
            raise SchedulerError("next_batch: another call is waiting for a batch already")
        self._collecting = True
        try:
            return await self._collect()
        except BaseException:  # whatever ends the wait, cancellation included, must leave no task behind
            await self._stop()
            raise
        finally:
            self._collecting = False

    def publish(self, version: int) -> None:
        """Tells that new weights were published; what is too old for training now is dropped.

        Raises:
            SchedulerError: If the version is lower than the current one.
        """
        self._advance(self._core.publish(version, self._clock()))

    def add_replica(self, name: str, slots: int) -> None:
        """Adds a replica, for example one that was restarted.

        Raises:
            SchedulerError: If it is there already or has no slot.
        """
        self._advance(self._core.replica_up(name, slots, self._clock()))

    def remove_replica(self, name: str, reason: str = "removed", *, returns: bool = False) -> None:
        """Removes a replica that died or is wanted elsewhere; its tickets are sent out again on others.

        When none is left and none returns, the waiting `next_batch` raises.

        Args:
            name: The replica.
            reason: For messages.
            returns: Whether `add_replica` will bring it back; its tickets then wait, if there is no other.

        Raises:
            SchedulerError: If there is no such replica.
        """
        commands = self._core.replica_down(name, reason, self._clock(), returns=returns)
        logger.warning("replica %r left (%s)", name, reason)
        self._advance(commands)

    def pending(self, *, most: int | None = None) -> list[PendingTicket]:
        """Tickets that are being waited for, the one that is longest in its state first.

        Args:
            most: How many at most; None for all. A few of many cost much less.
        """
        return self._core.pending(self._clock(), most=most)

    def pending_count(self) -> int:
        """Number of tickets that are being waited for."""
        return self._core.pending_count()

    def metrics(self) -> dict[str, float]:
        """Numbers of this moment and of the run, named `scheduler/...`."""
        return self._core.metrics(self._clock())

    def ledger(self) -> Mapping[str, int]:
        """Tickets that ended, by how: delivered, failed, group_failed, stale, filter:<name>, closed."""
        return dict(self._core.ledger.ends)

    async def aclose(self) -> None:
        """Cancels what runs and waits for it, at most 10 seconds. A second call does nothing.

        Raises:
            DeadlineExceeded: If tasks ignored their cancellation for that long.
        """
        stuck = await self._stop()
        if stuck:
            raise _ignored_cancellation(stuck)

    async def _collect(self) -> Batch[P, C, S]:
        self._started = True
        self._core.open_batch()
        while True:
            self._wake.clear()
            self._admit()
            if self._error is not None:
                raise self._error
            if self._closed:
                raise SchedulerError("next_batch: the scheduler was closed while it waited")
            cut = self._core.take_batch(self._clock())
            if cut is not None:
                batch = self._assemble(cut)
                self._carry_out(cut.commands)
                return batch
            self._arm_timer()
            await self._wake.wait()

    def _admit(self) -> None:
        """Takes prompts as long as there is room; after every 512 tickets the event loop turns first."""
        if self._admission is not None:
            return
        enough = self._core.next_group + max(1, TICKETS_AT_ONCE // self._group_size)
        self._refill()
        while self._started and not self._closed and self._error is None and self._core.room > 0:
            if self._core.next_group >= enough:
                self._admission = asyncio.get_running_loop().call_soon(self._go_on_admitting)
                return
            try:
                prompt = next(self._prompts)
            except StopIteration:
                self._core.exhaust()
                self._refill()
                return
            except Exception as error:  # boundary to the caller's prompts: next_batch raises it
                self._fail(error)
                return
            if self._core.pass_over():
                continue
            group = self._core.next_group
            self._prompt_of[group], self._generated[group], self._graded[group] = prompt, {}, {}
            self._carry_out(self._core.admit(self._clock()))

    def _refill(self) -> None:
        if self._started and not self._closed and self._error is None:
            self._carry_out(self._core.refill(self._clock()))

    def _go_on_admitting(self) -> None:
        self._admission = None
        self._advance(())

    def _advance(self, commands: Iterable[Command]) -> None:
        self._carry_out(commands)
        self._admit()
        self._arm_timer()
        self._wake.set()

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Generate(ticket=ticket, replica=replica):
                    self._start("generate", ticket, self._call_generate(ticket, replica))
                case Grade(ticket=ticket):
                    self._start("grade", ticket, self._call_grade(ticket))
                case Abort(ticket=ticket):
                    self._abort(ticket)
                case Defer(group=group):
                    self._generated[group], self._graded[group] = {}, {}
                case Drop(group=group):
                    del self._prompt_of[group], self._generated[group], self._graded[group]

    def _start(self, stage: str, ticket: Ticket, call: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(call, name=f"{stage} ticket {ticket.id}")
        self._tasks[ticket.id] = task
        task.add_done_callback(partial(self._finished, stage, ticket))

    async def _call_generate(self, ticket: Ticket, replica: str) -> Generated[C]:
        return await self._generate(ticket, self._prompt_of[ticket.group], replica)

    async def _call_grade(self, ticket: Ticket) -> Graded[S]:
        completion = self._generated[ticket.group][ticket.member].completion
        return await self._grade(ticket, self._prompt_of[ticket.group], completion)

    def _abort(self, ticket: Ticket) -> None:
        task = self._tasks.pop(ticket.id, None)
        if task is not None:
            self._aborted.add(task)
            task.cancel()

    def _finished(self, stage: str, ticket: Ticket, task: asyncio.Task[Any]) -> None:
        if task in self._aborted:
            self._aborted.discard(task)
            if not task.cancelled():
                task.exception()
            return
        del self._tasks[ticket.id]
        try:
            self._advance(self._report(stage, ticket, task))
        except Exception as error:  # boundary to the caller's functions and filters: next_batch raises it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake.set()

    def _report(self, stage: str, ticket: Ticket, task: asyncio.Task[Any]) -> Iterable[Command]:
        now = self._clock()
        if task.cancelled():
            message = f"{stage} of ticket {ticket.id} was cancelled, not by the scheduler"
            return self._core.failed(ticket, "cancelled", message, now)
        error = task.exception()
        if isinstance(error, TicketFailed):
            return self._core.failed(ticket, error.kind, error.message, now)
        if error is not None:
            raise SchedulerError(
                f"{stage} raised {type(error).__name__}: {error} (ticket {ticket.id}, group {ticket.group}); "
                "only TicketFailed says that a ticket has no result"
            ) from error
        result = task.result()
        if stage == "grade" and isinstance(result, Graded):
            self._graded[ticket.group][ticket.member] = result
            return self._core.graded(ticket, value=result.value, now=now)
        if stage == "generate" and isinstance(result, Generated):
            self._generated[ticket.group][ticket.member] = result
            return self._core.generated(
                ticket,
                tokens=result.tokens,
                oldest_version=result.oldest_version,
                truncated=result.truncated,
                now=now,
            )
        allowed = "Graded" if stage == "grade" else "Generated"
        raise SchedulerError(
            f"{stage} returned {type(result).__name__} for ticket {ticket.id}, not {allowed}"
        )

    def _assemble(self, cut: Cut) -> Batch[P, C, S]:
        groups = tuple(self._group(delivery) for delivery in cut.deliveries)
        return Batch(groups=groups, version=cut.version, failures=cut.failures, dropped=cut.dropped)

    def _group(self, delivery: Deliver) -> Group[P, C, S]:
        generated, graded = self._generated.pop(delivery.group), self._graded.pop(delivery.group)
        members = tuple(
            Member(ticket=ticket, generated=generated[ticket.member], graded=graded[ticket.member])
            for ticket in delivery.members
        )
        return Group(id=delivery.group, prompt=self._prompt_of.pop(delivery.group), members=members)

    def _arm_timer(self) -> None:
        at = None if self._closed else self._core.next_deadline
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(at - self._clock(), SHORTEST_TIMER_S)
        self._timer, self._timer_at = asyncio.get_running_loop().call_later(delay, self._on_timer), at

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._advance(self._core.tick(self._clock()))
        except Exception as error:  # boundary to the caller's filters: next_batch raises it
            self._fail(error)

    async def _stop(self) -> list[str]:
        self._closed = True
        self._at_close = self._at_close or self._core.snapshot()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._admission is not None:
            self._admission.cancel()
        self._carry_out(self._core.close())
        self._wake.set()
        if not self._aborted:
            return []
        _, running = await asyncio.wait(self._aborted, timeout=CLOSE_DEADLINE_S)
        stuck = sorted(task.get_name() for task in running)
        if stuck:
            logger.error("%s", _ignored_cancellation(stuck))
        return stuck


def _ignored_cancellation(stuck: list[str]) -> DeadlineExceeded:
    return DeadlineExceeded(f"these ignored their cancellation for {CLOSE_DEADLINE_S} s: {', '.join(stuck)}")
