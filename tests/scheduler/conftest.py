"""A virtual-time event loop and scripted work for the scheduler's tests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from roll_scheduler import (
    Abort,
    Command,
    Defer,
    Drop,
    Generate,
    Generated,
    Grade,
    Graded,
    RolloutScheduler,
    SchedulerCore,
    SchedulerPolicy,
    Stop,
    Ticket,
)

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer; nothing to wait for is an error, not a hang."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:
            timers = [handle.when() for handle in self._scheduled if not handle.cancelled()]
            if not timers:
                raise RuntimeError("deadlock: nothing runs and no timer is set")
            self._now = max(self._now, min(timers))
        super()._run_once()


@pytest.fixture
def run_virtual() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine in virtual time and checks that it leaves no task behind."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        async def checked() -> T:
            result = await main
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left running: {left}"
            return result

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(checked())

    return run


class ScriptedWork:
    """Generation and grading that take as long, and end as, a test says.

    Attributes:
        seconds: Duration of a generation by ticket, 1 by default.
        generate_faults: Called with ticket and replica before a generation ends; may raise.
        values: Reward by ticket, 1.0 for odd members and 0.0 for even ones by default.
        started: (ticket, replica) of each generation that was started, in order.
        running: Generations that run now, by replica; `most` is the greatest number there was.
    """

    def __init__(self) -> None:
        self.version = 0
        self.seconds: Callable[[Ticket], float] = lambda ticket: 1.0
        self.grade_seconds: Callable[[Ticket], float] = lambda ticket: 0.0
        self.generate_faults: Callable[[Ticket, str], None] = lambda ticket, replica: None
        self.grade_faults: Callable[[Ticket], None] = lambda ticket: None
        self.values: Callable[[Ticket], float] = lambda ticket: float(ticket.member % 2)
        self.started: list[tuple[Ticket, str]] = []
        self.graded: list[Ticket] = []
        self.cancelled: list[Ticket] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def generate(self, ticket: Ticket, prompt: str, replica: str) -> Generated[str]:
        self.started.append((ticket, replica))
        self.running[replica] += 1
        self.most[replica] = max(self.most[replica], self.running[replica])
        version = self.version
        try:
            await asyncio.sleep(self.seconds(ticket))
            self.generate_faults(ticket, replica)
        except asyncio.CancelledError:
            self.cancelled.append(ticket)
            raise
        finally:
            self.running[replica] -= 1
        text = f"{prompt}:{ticket.member}"
        return Generated(completion=text, tokens=3, oldest_version=version, truncated=False)

    async def grade(self, ticket: Ticket, prompt: str, completion: str) -> Graded[str]:
        self.graded.append(ticket)
        try:
            await asyncio.sleep(self.grade_seconds(ticket))
            self.grade_faults(ticket)
        except asyncio.CancelledError:
            self.cancelled.append(ticket)
            raise
        return Graded(score=f"score of {completion}", value=self.values(ticket))

    def scheduler(
        self,
        policy: SchedulerPolicy,
        *,
        prompts: int = 1000,
        replicas: dict[str, int] | None = None,
        **options: Any,
    ) -> RolloutScheduler[str, str, str]:
        """A scheduler of `prompts` prompts `p0`, `p1`, ... in the running loop's time."""
        return RolloutScheduler(
            prompts=iter([f"p{number}" for number in range(prompts)]),
            generate=self.generate,
            grade=self.grade,
            replicas={"a": 1000} if replicas is None else replicas,
            policy=policy,
            clock=asyncio.get_running_loop().time,
            **options,
        )


@pytest.fixture
def work() -> ScriptedWork:
    return ScriptedWork()


@pytest.fixture
def make_work() -> Callable[[], ScriptedWork]:
    """For tests that need new work again and again."""
    return ScriptedWork


class CoreRun:
    """A core whose commands are carried out in so far as it is noted what runs.

    Attributes:
        running: Generations that run, by ticket id.
        grading: Tickets that are being graded, by id.
        stopping: Reasons of the stops that were asked for and not done, by ticket id.
        aborted, dropped: (ticket id or group, reason) in order; `anew` has the groups that begin anew.
    """

    def __init__(self, *, replicas: dict[str, int] | None = None, core: Any = None, **policy: Any) -> None:
        sizes = {"groups_per_batch": 2, "group_size": 2, **policy}
        self.policy = SchedulerPolicy(**sizes)
        self.core = SchedulerCore(self.policy, replicas=replicas or {"a": 100}, **(core or {}))
        self.now = 0.0
        self.running: dict[int, Generate] = {}
        self.grading: dict[int, Ticket] = {}
        self.stopping: dict[int, str] = {}
        self.aborted: list[tuple[int, str]] = []
        self.dropped: list[tuple[int, str]] = []
        self.anew: list[int] = []
        self.core.open_batch()

    def do(self, commands: list[Command]) -> list[Command]:
        """Notes commands."""
        for command in commands:
            match command:
                case Generate(ticket=ticket):
                    self.running[ticket.id] = command
                case Grade(ticket=ticket):
                    self.grading[ticket.id] = ticket
                case Stop(ticket=ticket, reason=reason):
                    self.stopping[ticket.id] = reason
                case Abort(ticket=ticket, reason=reason):
                    self.running.pop(ticket.id, None)
                    self.grading.pop(ticket.id, None)
                    self.stopping.pop(ticket.id, None)
                    self.aborted.append((ticket.id, reason))
                case Drop(group=group, reason=reason):
                    self.dropped.append((group, reason))
                case Defer(group=group):
                    self.anew.append(group)
        return commands

    def admit(self) -> None:
        """Takes prompts as long as there is room."""
        self.do(self.core.refill(self.now))
        while self.core.room:
            self.do(self.core.admit(self.now))

    def generate(self, *tickets: int, tokens: int = 5, version: int | None = None, **more: Any) -> None:
        """Generations finish, by default at the current version."""
        for ticket_id in tickets:
            ticket = self.running.pop(ticket_id).ticket
            self.stopping.pop(ticket_id, None)
            oldest = self.core.version if version is None else version
            event = {"tokens": tokens, "oldest_version": oldest, "truncated": False, "now": self.now, **more}
            self.do(self.core.generated(ticket, **event))

    def stop(self, *tickets: int, tokens: int, version: int | None = None, **more: Any) -> None:
        """Generations end unfinished."""
        for ticket_id in tickets:
            ticket = self.running.pop(ticket_id).ticket
            self.stopping.pop(ticket_id, None)
            oldest = self.core.version if version is None else version
            self.do(self.core.stopped(ticket, tokens=tokens, oldest_version=oldest, now=self.now, **more))

    def grade(self, *tickets: int, value: float | None = None) -> None:
        """Gradings finish, odd members with reward 1 and even ones with 0."""
        for ticket_id in tickets:
            ticket = self.grading.pop(ticket_id)
            reward = float(ticket.member % 2) if value is None else value
            self.do(self.core.graded(ticket, value=reward, now=self.now))

    def finish(self, *tickets: int, **how: Any) -> None:
        """Generations finish and are graded."""
        self.generate(*tickets, **how)
        self.grade(*(ticket for ticket in tickets if ticket in self.grading))

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.do(self.core.tick(self.now))

    def take(self) -> list[int] | None:
        """Groups of the batch if it is complete; its leftovers are ended, the next is not asked for."""
        cut = self.core.take_batch(self.now)
        if cut is None:
            return None
        self.do(list(cut.commands))
        return [delivery.group for delivery in cut.deliveries]

    def next_version(self) -> None:
        """The weights are published and the next batch is asked for."""
        self.do(self.core.publish(self.core.version + 1, self.now))
        self.core.open_batch()
        self.admit()

    def value(self, name: str) -> float:
        """A metric."""
        return self.core.metrics(self.now)[f"scheduler/{name}"]


@pytest.fixture
def core_run() -> type[CoreRun]:
    return CoreRun
