"""A virtual-time event loop and scripted work for the scheduler's tests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from roll_scheduler import Generated, Graded, RolloutScheduler, SchedulerPolicy, Ticket

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
