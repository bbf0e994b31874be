"""The work of a live scheduler: commands become calls of the caller's functions, their results events.

Used by the driver, which decides when.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from roll_scheduler.errors import SchedulerError, TicketFailed
from roll_scheduler.lifecycle.command import Abort, Command, Cut, Defer, Drop, Generate, Grade, Stop
from roll_scheduler.lifecycle.core import SchedulerCore
from roll_scheduler.live.calls import Calls, Stage
from roll_scheduler.live.part import Part
from roll_scheduler.live.store import GroupStore
from roll_scheduler.policy import SchedulerPolicy
from roll_scheduler.rounds.batch import Batch, Generated, Graded
from roll_scheduler.ticket import Ticket

__all__ = ["Work"]

P = TypeVar("P")
C = TypeVar("C")
S = TypeVar("S")


class Work(Generic[P, C, S]):
    """The caller's functions, what runs of them, and what they gave.

    Args:
        generate: See `RolloutScheduler`.
        generate_part: Likewise; exactly one of the two.
        grade: Likewise.
        policy: Says which of the two.
        finished: Called with each task that ended and was not aborted.

    Raises:
        SchedulerError: If the policy is none, or has `partial` without `generate_part` or vice versa.
    """

    def __init__(
        self,
        *,
        generate: Callable[[Ticket, P, str], Awaitable[Generated[C]]] | None,
        generate_part: Callable[[Ticket, P, str, Part[C]], Awaitable[Generated[C]]] | None,
        grade: Callable[[Ticket, P, C], Awaitable[Graded[S]]],
        policy: SchedulerPolicy,
        finished: Callable[[Stage, Ticket, asyncio.Task[Any]], None],
    ) -> None:
        _check_functions(generate is not None, generate_part is not None, policy)
        self._generate = generate
        self._generate_part = generate_part
        self._grade = grade
        self.store: GroupStore[P, C, S] = GroupStore()
        self.calls = Calls(finished)

    def carry_out(self, commands: Iterable[Command]) -> None:
        """Does what the core asks for."""
        for command in commands:
            match command:
                case Generate(ticket=ticket, replica=replica):
                    self._start_generating(ticket, replica)
                case Grade(ticket=ticket):
                    self.calls.start("grade", ticket, self._call_grade(ticket))
                case Stop(ticket=ticket):
                    self.calls.stop(ticket)
                case Abort(ticket=ticket):
                    self.calls.abort(ticket)
                case Defer(group=group):
                    self.store.begin_anew(group)
                case Drop(group=group):
                    self.store.drop(group)

    def report(
        self, core: SchedulerCore, stage: Stage, ticket: Ticket, task: asyncio.Task[Any], now: float
    ) -> Iterable[Command]:
        """Tells the core how a call ended; returns the commands that follow.

        Raises:
            SchedulerError: The caller's function raised something else than `TicketFailed`, or returned
                something else than its record.
        """
        if task.cancelled():
            message = f"{stage} of ticket {ticket.id} was cancelled, not by the scheduler"
            return core.failed(ticket, "cancelled", message, now)
        error = task.exception()
        if isinstance(error, TicketFailed):
            return core.failed(ticket, error.kind, error.message, now)
        if error is not None:
            raise SchedulerError(
                f"{stage} raised {type(error).__name__}: {error} (ticket {ticket.id}, group {ticket.group}); "
                "only TicketFailed says that a ticket has no result"
            ) from error
        result = task.result()
        if stage == "grade" and isinstance(result, Graded):
            self.store.keep_graded(ticket, result)
            return core.graded(ticket, value=result.value, now=now)
        if stage == "generate" and isinstance(result, Generated):
            return self._report_generated(core, ticket, result, now)
        allowed = "Graded" if stage == "grade" else "Generated"
        raise SchedulerError(
            f"{stage} returned {type(result).__name__} for ticket {ticket.id}, not {allowed}"
        )

    def deliver(self, cut: Cut) -> Batch[P, C, S]:
        """The batch of a cut; its commands are still to be carried out."""
        groups = tuple(self.store.deliver(delivery) for delivery in cut.deliveries)
        return Batch(groups=groups, version=cut.version, failures=cut.failures, dropped=cut.dropped)

    def _report_generated(
        self, core: SchedulerCore, ticket: Ticket, result: Generated[C], now: float
    ) -> Iterable[Command]:
        if result.finished:
            self.store.keep_generated(ticket, result)
            return core.generated(
                ticket,
                tokens=result.tokens,
                oldest_version=result.oldest_version,
                truncated=result.truncated,
                spans=result.spans,
                now=now,
            )
        commands = core.stopped(
            ticket,
            tokens=result.tokens,
            oldest_version=result.oldest_version,
            spans=result.spans,
            now=now,
        )
        self.store.keep_part(ticket, result)
        return commands

    def _start_generating(self, ticket: Ticket, replica: str) -> None:
        if self._generate_part is None:
            self.calls.start("generate", ticket, self._call_generate(ticket, replica))
            return
        part = self.store.part(ticket)
        self.calls.start("generate", ticket, self._call_part(ticket, replica, part), stopping=part.stopping)

    async def _call_generate(self, ticket: Ticket, replica: str) -> Generated[C]:
        assert self._generate is not None  # checked by the constructor
        return await self._generate(ticket, self.store.prompt(ticket.group), replica)

    async def _call_part(self, ticket: Ticket, replica: str, part: Part[C]) -> Generated[C]:
        assert self._generate_part is not None  # the only caller has looked
        return await self._generate_part(ticket, self.store.prompt(ticket.group), replica, part)

    async def _call_grade(self, ticket: Ticket) -> Graded[S]:
        return await self._grade(ticket, self.store.prompt(ticket.group), self.store.completion(ticket))


def _check_functions(whole: bool, in_parts: bool, policy: SchedulerPolicy) -> None:
    given_policy: object = policy
    if not isinstance(given_policy, SchedulerPolicy):
        raise SchedulerError(
            f"policy: got {type(given_policy).__name__}, allowed is a SchedulerPolicy; of fields by name: "
            "SchedulerPolicy(**fields)"
        )
    if in_parts == whole or in_parts != (policy.partial is not None):
        given = [name for name, there in (("generate", whole), ("generate_part", in_parts)) if there]
        wanted = "generate" if policy.partial is None else "generate_part"
        raise SchedulerError(
            f"RolloutScheduler: got {' and '.join(given) or 'no function that generates'} with partial "
            f"{policy.partial}, allowed is {wanted} alone"
        )
