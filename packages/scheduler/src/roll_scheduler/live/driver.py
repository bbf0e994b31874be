"""The live scheduler: runs the core on asyncio, with the caller's functions as the work.

The trainer's loop calls `next_batch` and `publish`; a watchdog calls `pending` and `metrics`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace as with_fields
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from roll_scheduler.errors import SchedulerError
from roll_scheduler.lifecycle.command import Command
from roll_scheduler.lifecycle.core import PauseMode, SchedulerCore
from roll_scheduler.lifecycle.learned import OWN_PARTS
from roll_scheduler.live.admission import Admission
from roll_scheduler.live.calls import CLOSE_DEADLINE_S, Stage, ignored_cancellation
from roll_scheduler.live.part import Part
from roll_scheduler.live.timer import DeadlineTimer
from roll_scheduler.live.work import Work
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.prompts.traits import PromptTraits
from roll_scheduler.queueing.longest_first import LengthEstimator
from roll_scheduler.reports.diagnosis import Diagnosis
from roll_scheduler.rounds.batch import Batch, Generated, Graded
from roll_scheduler.routers.router import Router
from roll_scheduler.snapshot import SchedulerSnapshot, StatefulPart, stateful_parts
from roll_scheduler.ticket import PendingTicket, Ticket

__all__ = ["RolloutScheduler"]

P = TypeVar("P")
C = TypeVar("C")
S = TypeVar("S")

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
        generate_part: Instead of `generate`, where the policy has `partial`: called with a `Part` besides,
            which holds what an earlier call returned, and says when this one is to stop.
        grade: Called with ticket, prompt and completion. Raises `TicketFailed` if there is no verdict.
        replicas: Slots (tickets at a time) by name.
        policy: Sizes and bounds.
        run_seed: Seed that ticket seeds derive from.
        resume: A snapshot to go on from; `prompts` then begins with that of its `first_group`.
        traits: What is known of a prompt: a key that later epochs share, a session, its length.
        router: Which replica takes a ticket, instead of the policy's `router`; empty, and this one's alone.
        estimator: Predicts lengths; None makes a `LengthPredictor` where the policy needs one.
        tag: The environment of a prompt, for the policy's `concurrency`.
        observe: Called with the prompt and the rewards of each group that ends, also of those that a filter
            refused: what a curriculum has to know.
        parts: What else goes into snapshots and comes back with `resume`, by name; not `"lengths"` and
            `"scheduler"`, which are the scheduler's own.
        clock: Seconds, monotonic; deadlines and ages are measured by it.

    Raises:
        SchedulerError: If `replicas` is empty or one has no slot, the snapshot is of another configuration,
            or the policy has `partial` without `generate_part` or the other way round.
    """

    def __init__(
        self,
        *,
        prompts: Iterable[P],
        generate: Callable[[Ticket, P, str], Awaitable[Generated[C]]] | None = None,
        generate_part: Callable[[Ticket, P, str, Part[C]], Awaitable[Generated[C]]] | None = None,
        grade: Callable[[Ticket, P, C], Awaitable[Graded[S]]],
        replicas: Mapping[str, int],
        policy: SchedulerPolicy,
        run_seed: int = 0,
        resume: SchedulerSnapshot | None = None,
        traits: Callable[[P], PromptTraits] | None = None,
        router: Router | None = None,
        estimator: LengthEstimator | None = None,
        tag: Callable[[P], str] | None = None,
        observe: Callable[[P, list[float]], None] | None = None,
        parts: Mapping[str, StatefulPart] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work: Work[P, C, S] = Work(
            generate=generate,
            generate_part=generate_part,
            grade=grade,
            policy=policy,
            finished=self._finished,
        )
        prompt = self._work.store.prompt
        self._observe = observe
        self._work.store.observe = observe and self._observed
        self._core = SchedulerCore(
            policy,
            replicas=replicas,
            run_seed=run_seed,
            resume=resume,
            router=router,
            estimator=estimator,
            traits=None if traits is None else lambda group: traits(prompt(group)),
            tag=None if tag is None else lambda group: tag(prompt(group)),
        )
        self._parts = stateful_parts(parts or {}, reserved=OWN_PARTS, resume=resume)
        self._policy = policy
        self._clock = clock
        self._admission: Admission[P] = Admission(
            prompts,
            core=self._core,
            work=self._work,
            group_size=policy.group_size,
            clock=clock,
            go_on=self._go_on_admitting,
        )
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer = DeadlineTimer(clock, self._on_timer)
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
            raise ignored_cancellation(stuck)

    def snapshot(self) -> SchedulerSnapshot:
        """Where a later scheduler has to go on; of a closed one, as it was when it was closed.

        Groups that were delivered count as trained, so take it between the training of a batch and the next
        `next_batch`; what is pending then is generated again.
        """
        if self._at_close is not None:
            return self._at_close
        snapshot = self._core.snapshot()
        states = {name: part.state() for name, part in self._parts.items()}
        return with_fields(snapshot, parts={**snapshot.parts, **states})

    async def next_batch(self) -> Batch[P, C, S]:
        """The next `groups_per_batch` complete groups; fewer, maybe none, when the prompts are exhausted.

        If it raises or is cancelled, the scheduler is closed and none of its tasks is left running.

        Raises:
            TooManyFailures: More attempts failed than `max_failures`.
            DeadlineExceeded: Nothing has run for `wait_deadline_s`: all replicas drain, say, or nobody ended
                a pause. The message says why, and shows what waits.
            StarvationError: More groups were filtered or stale than `max_refills` batches' worth.
            SchedulerError: No replica is left, `generate` or `grade` raised something else than
                `TicketFailed` or returned something else than their records, the scheduler is closed, or
                another call is waiting, or was made in another event loop. What a filter, `prompts`, `tag` or
                `traits` raises comes through as it is, and what `observe` raises with the next call.
        """
        if self._closed:
            raise SchedulerError("next_batch: the scheduler is closed")
        if self._collecting:
            raise SchedulerError("next_batch: another call is waiting for a batch already")
        if self._loop not in (None, loop := asyncio.get_running_loop()):
            raise SchedulerError("next_batch: got another event loop than before, allowed is one for all")
        self._loop = loop
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
            SchedulerError: If the version is no integer or lower than the current one.
        """
        self._advance(self._core.publish(version, self._clock()))

    async def pause(self, mode: PauseMode = "keep") -> None:
        """From now on nothing is sent out and no prompt is taken, until `resume`; for a weight sync, say.

        Results that come are graded, and a batch that is complete is delivered.

        Args:
            mode: What becomes of running generations. `"keep"`: they go on. `"abort"`: they are cancelled and
                called again after the pause, with the same seed, at no cost of a retry. `"stop"`, with
                partial rollouts: they are asked to stop, and go on after the pause with what they have. With
                the last two, the call returns when none is running any more.

        Raises:
            SchedulerError: If the mode is not known, or `"stop"` without partial rollouts.
            DeadlineExceeded: If a generation ignored its cancellation for 10 seconds.
        """
        self._advance(self._core.pause(mode, self._clock()))
        if mode == "keep":
            return
        if mode == "stop" and self._policy.partial is not None:
            await self._work.calls.quiet(self._policy.partial.stop_deadline_s, generations=True)
        stuck = await self._work.calls.quiet(CLOSE_DEADLINE_S, generations=True)
        if stuck:
            raise ignored_cancellation(stuck)

    def resume(self) -> None:
        """Ends a pause; without one, nothing changes."""
        self._advance(self._core.resume(self._clock()))

    def add_replica(self, name: str, slots: int) -> None:
        """Adds a replica, for example one that was restarted.

        Raises:
            SchedulerError: If it is there already or has no slot.
        """
        self._advance(self._core.replica_up(name, slots, self._clock()))

    def remove_replica(
        self, name: str, reason: str = "removed", *, returns: bool = False, planned: bool = False
    ) -> None:
        """Removes a replica that died or is wanted elsewhere; its tickets are sent out again on others.

        When none is left and none returns, the waiting `next_batch` raises.

        Args:
            name: The replica.
            reason: For messages.
            returns: Whether `add_replica` will bring it back; its tickets then wait, if there is no other.
            planned: It is wanted elsewhere and works still: its tickets are not suspected of having killed
                it, and with partial rollouts are stopped and go on elsewhere with what they have.

        Raises:
            SchedulerError: If there is no such replica.
        """
        commands = self._core.replica_down(name, reason, self._clock(), returns=returns, planned=planned)
        logger.warning("replica %r left (%s)", name, reason)
        self._advance(commands)

    def drain_replica(self, name: str, *, on: bool = True) -> None:
        """Sends nothing new to a replica, for example before an upgrade; what runs there goes on. Where all
        drain, tickets wait.

        Args:
            name: The replica.
            on: False ends the drain.

        Raises:
            SchedulerError: If there is no such replica.
        """
        self._advance(self._core.replica_drains(name, self._clock(), on=on))

    def pending(self, *, most: int | None = None) -> list[PendingTicket]:
        """Tickets that are being waited for, the one that is longest in its state first.

        Args:
            most: How many at most; None for all. A few of many cost much less.
        """
        return self._core.pending(self._clock(), most=most)

    def pending_count(self) -> int:
        """Number of tickets that are being waited for."""
        return self._core.pending_count()

    def why(self, *, most: int | None = None) -> Diagnosis:
        """What a batch waits for: state, age, replica, attempt and tokens of each ticket, and why it is late.

        Args:
            most: Tickets at most, the one that is longest in its state first; None for all.
        """
        return self._core.why(self._clock(), most=most)

    def report_tokens(self, ticket: Ticket, tokens: int) -> None:
        """Tells how far a running generation is; `why` shows it, and stragglers are found sooner.

        Args:
            ticket: The attempt, as `generate` got it; of one that has ended nothing is noted.
            tokens: Tokens so far, with those of earlier parts.

        Raises:
            SchedulerError: If the number is no integer >= 0.
        """
        self._core.reported(ticket, tokens, self._clock())

    def metrics(self) -> dict[str, float]:
        """Numbers of this moment and of the run, named `scheduler/...`."""
        return self._core.metrics(self._clock())

    def ledger(self) -> Mapping[str, int]:
        """Tickets that ended, by how: delivered, failed, group_failed, stale, filter:<name>, surplus,
        quarantined, deferred, requeued, closed."""
        return dict(self._core.ledger.ends)

    async def aclose(self) -> None:
        """Cancels what runs and waits for it, at most 10 seconds. A second call does nothing.

        Raises:
            DeadlineExceeded: If tasks ignored their cancellation for that long.
        """
        stuck = await self._stop()
        if stuck:
            raise ignored_cancellation(stuck)

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
                batch = self._work.deliver(cut)
                self._work.carry_out(cut.commands)
                return batch
            self._arm_timer()
            await self._wake.wait()

    def _admit(self) -> None:
        if not self._started or self._closed or self._error is not None:
            return
        try:
            self._admission.take()
        except Exception as error:  # boundary to the caller's prompts, `tag`, `traits`: next_batch raises it
            self._fail(error)

    def _go_on_admitting(self) -> None:
        self._advance(())

    def _advance(self, commands: Iterable[Command]) -> None:
        try:
            self._work.carry_out(commands)
            self._admit()
        except Exception as error:  # boundary to the caller's `tag` and `traits`: next_batch raises it
            self._fail(error)
        self._arm_timer()
        self._wake.set()

    def _finished(self, stage: Stage, ticket: Ticket, task: asyncio.Task[Any]) -> None:
        try:
            self._advance(self._work.report(self._core, stage, ticket, task, self._clock()))
        except Exception as error:  # boundary to the caller's functions and filters: next_batch raises it
            self._fail(error)

    def _observed(self, prompt: P, rewards: list[float]) -> None:
        assert self._observe is not None  # the only caller has looked
        try:
            self._observe(prompt, rewards)
        except Exception as error:  # boundary to the caller's `observe`: the next next_batch raises it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._collecting:
            logger.error("between two batches: %r", error)
        self._error = self._error or error
        self._wake.set()

    def _arm_timer(self) -> None:
        self._timer.arm(None if self._closed else self._core.next_deadline)

    def _on_timer(self) -> None:
        try:
            self._advance(self._core.tick(self._clock()))
        except Exception as error:  # boundary to the caller's filters: next_batch raises it
            self._fail(error)

    async def _stop(self) -> list[str]:
        self._closed = True
        try:
            self._at_close = self.snapshot()
        finally:  # a part of the caller's may raise; no task is left behind for that
            self._timer.cancel()
            self._admission.cancel()
            self._work.carry_out(self._core.close())
            self._work.calls.abort_all()
            self._wake.set()
            stuck = await self._work.calls.quiet(CLOSE_DEADLINE_S, generations=False)
        if stuck:
            logger.error("%s", ignored_cancellation(stuck))
        return stuck
