"""The workers of one role, of which each that dies or stops answering is replaced.

Pipelines enter a group around a stage; whoever calls a worker and finds it dead reports that to `lost`.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from roll_launch.config import HealthConfig
from roll_launch.errors import RollLaunchError
from roll_launch.failures import RoleDied
from roll_launch.roles import Pulse
from roll_launch.waits import WaitExpired, Waits

logger = logging.getLogger(__name__)


class RoleGroupError(RollLaunchError):
    """Workers of a role were lost more often than the configuration allows; the message has the counts."""


class Living(Protocol):
    """A worker that gives signs of life."""

    async def pulse(self) -> Pulse: ...


Role = TypeVar("Role", bound=Living)


class RoleGroup(Generic[Role]):
    """Keeps the workers of one role serving while it is entered.

    A lost worker leaves at once; a replacement of the same name joins when it has started and was brought up
    to date. One that dies on the way, or is not there in time, is lost like any other. What else goes wrong
    ends the body with its error.

    Args:
        role: Such as "rollout actor", for messages.
        start: Starts a worker under a name, after ending what is left there.
        health: How losses are found, and how many are too many.
        waits: Of the run.
        start_deadline_s: Seconds for a replacement.

    Attributes:
        live: Workers that serve now, by name.
        losses: How often each was lost.
    """

    def __init__(
        self,
        role: str,
        *,
        start: Callable[[str], Awaitable[Role]],
        health: HealthConfig,
        waits: Waits,
        start_deadline_s: float,
    ) -> None:
        self._role = role
        self._start = start
        self._health = health
        self._waits = waits
        self._start_deadline_s = start_deadline_s
        self.live: dict[str, Role] = {}
        self.losses: Counter[str] = Counter()
        self._joined = asyncio.Event()
        self._turn = 0
        self._bring_up: Callable[[str, Role], Awaitable[None]] | None = None
        self._on_lost: list[Callable[[str, str], None]] = []
        self._on_joined: list[Callable[[str], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: asyncio.Task[object] | None = None
        self._error: BaseException | None = None

    async def start(self, name: str) -> None:
        """Starts a worker before the group is entered; one that dies while it starts is started again.

        Raises:
            RoleError: It cannot start.
            RoleGroupError: It died too often.
        """
        self.live[name] = await self._started(name)

    def bring_up_with(self, bring_up: Callable[[str, Role], Awaitable[None]]) -> None:
        """What a replacement goes through before it serves; nothing runs between its end and the joining."""
        self._bring_up = bring_up

    @contextlib.contextmanager
    def told(self, lost: Callable[[str, str], None], joined: Callable[[str], None]) -> Iterator[None]:
        """Calls `lost(name, why)` and `joined(name)` while the body runs."""
        self._on_lost.append(lost)
        self._on_joined.append(joined)
        try:
            yield
        finally:
            self._on_lost.remove(lost)
            self._on_joined.remove(joined)

    def lost(self, name: str, worker: Role, why: str) -> None:
        """A call found `worker` dead. Only the first report of a worker counts."""
        if self.live.get(name) is not worker:
            return
        del self.live[name]
        self._count(name, why)
        for tell in list(self._on_lost):
            tell(name, why)
        self._spawn(self._replace(name, why), f"replacement of {name}")

    async def next(self) -> tuple[str, Role]:
        """A worker that serves, in turn; waits for a replacement if there is none."""
        await self.some()
        names = list(self.live)
        name = names[self._turn % len(names)]
        self._turn += 1
        return name, self.live[name]

    async def some(self) -> None:
        """Returns when at least one worker serves."""
        while not self.live:
            self._joined.clear()
            await self._joined.wait()

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        for name, worker in self.live.items():
            self._spawn(self._watch(name, worker), f"watch over {name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._error is None or owner is None:
            return
        # The body was cancelled because of this error. If somebody else cancelled it too, that goes on.
        if owner.uncancel() == 0 and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._error from None

    async def _watch(self, name: str, worker: Role) -> None:
        """Asks for signs of life; ends when the worker is lost."""
        loop, progress = asyncio.get_running_loop(), -1
        since = loop.time()
        while self.live.get(name) is worker:
            await asyncio.sleep(self._health.every_s)
            try:
                # Not `wait_for`: in Python 3.11 it can swallow a cancellation.
                async with asyncio.timeout(self._health.answer_s):
                    pulse = await worker.pulse()
            except TimeoutError:
                self.lost(name, worker, f"no sign of life within {self._health.answer_s:g} s")
                return
            except RoleDied as error:
                self.lost(name, worker, str(error))
                return
            if not pulse.busy or pulse.progress != progress:
                progress, since = pulse.progress, loop.time()
            elif loop.time() - since >= self._health.stall_s:
                self.lost(name, worker, f"busy without progress for {self._health.stall_s:g} s")

    async def _replace(self, name: str, why: str) -> None:
        while True:
            self._check(why)
            try:
                async with self._waits.wait(f"replacement of {name}", deadline_s=self._start_deadline_s):
                    worker = await self._started(name)
                    if self._bring_up is not None:
                        await self._bring_up(name, worker)
                break
            except (RoleDied, WaitExpired) as error:
                why = str(error)
                self._count(name, why)
        self.live[name] = worker
        self._joined.set()
        logger.warning("%s %s was replaced and serves", self._role, name)
        for tell in list(self._on_joined):
            tell(name)
        self._spawn(self._watch(name, worker), f"watch over {name}")

    async def _started(self, name: str) -> Role:
        while True:
            try:
                return await self._start(name)
            except RoleDied as error:
                self._count(name, str(error))
                self._check(str(error))

    def _count(self, name: str, why: str) -> None:
        self.losses[name] += 1
        logger.warning("%s %s was lost: %s", self._role, name, why)

    def _check(self, why: str) -> None:
        allowed = self._health.max_replacements
        if self.losses.total() > allowed:
            counts = ", ".join(f"{name} {count}" for name, count in sorted(self.losses.items()))
            raise RoleGroupError(
                f"{self._role}s were lost {self.losses.total()} times ({counts}), allowed are {allowed} "
                f"(health.max_replacements); the last time: {why}"
            )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        if self._owner is None:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._error is None and self._owner is not None:
            self._error = error
            self._owner.cancel()
