"""Who is in a set of replicas: joins, losses, replacements, and what a newcomer must be brought to first."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import AdapterEngine, EngineCapabilities, PausableEngine, SleepingEngine
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineClosed, EngineError, EngineUnavailable
from roll_rollout.replicas.deadlines import ReplicaDeadlines
from roll_rollout.replicas.member import Member
from roll_rollout.replicas.shared_capabilities import require_covered
from roll_rollout.weights import WeightReceipt, WeightUpdate

logger = logging.getLogger(__name__)

DEATHS = (EngineUnavailable, EngineClosed)
"""What an engine raises that will serve no more."""

_FIRST_WAIT_S = 1.0
"""Seconds before the second attempt to replace a replica; they double."""

Make = Callable[[str], Awaitable[Engine]]


class Wanted:
    """What every replica holds and does: newcomers are brought to it before they serve.

    Attributes:
        update: The weights that were published last; None while all have those they were made with.
        receipt: What a replica answers that has them.
        adapters: The LoRA adapters that are loaded, by name.
        paused: Whether all stand still.
        asleep_at: Level at which all sleep; 0 while awake.
        without_weights: Whether weights were dropped and have not come since.
    """

    def __init__(self) -> None:
        self.update: WeightUpdate | None = None
        self.receipt: WeightReceipt | None = None
        self.adapters: dict[str, AdapterUpdate] = {}
        self.paused = False
        self.asleep_at = 0
        self.without_weights = False

    async def reach(self, engine: Engine) -> None:
        """Brings an engine that was just made to this state.

        Raises:
            EngineError: It does not take the weights or an adapter, or acknowledges others.
        """
        if self.update is not None:
            receipt = await engine.update_weights(self.update)
            if receipt != self.receipt:
                raise EngineError(f"it acknowledged {receipt}, published was {self.receipt}")
        for update in self.adapters.values():
            if not isinstance(engine, AdapterEngine):
                raise EngineError(f"it takes no adapters, loaded is {update.name!r}")
            await engine.load_adapter(update)
        if isinstance(engine, SleepingEngine) and (self.asleep_at or self.without_weights):
            await engine.sleep(self.asleep_at or 2)
            if not self.asleep_at:
                await engine.wake()
        if isinstance(engine, PausableEngine) and self.paused:
            await engine.pause("keep")


class Roster:
    """The replicas of a set.

    Args:
        make: Makes an engine in the place of one that died; None leaves its place empty.
        capabilities: What every replica must be able to do.
        attempts: Most times that it is called for one death.
        deadlines: How long one is waited for.
        version: Policy version that engines are made with.
        sleep: Waits for a number of seconds.

    Attributes:
        members: All replicas by name; those that were lost stay until they are replaced or removed.
        wanted: What newcomers are brought to.
        turn: Held by whoever changes what all replicas hold, and by newcomers while they are brought to it.
        sampled_by_lost: Tokens that replicas had sampled, when last asked, which are gone.
        prefilled_by_lost: Prompt tokens that had gone through them.
        replacements: Replicas that were replaced.
    """

    def __init__(
        self,
        *,
        make: Make | None,
        capabilities: EngineCapabilities,
        attempts: int,
        deadlines: ReplicaDeadlines,
        version: int,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.members: dict[str, Member] = {}
        self.wanted = Wanted()
        self.turn = asyncio.Lock()
        self.sampled_by_lost = 0
        self.prefilled_by_lost = 0
        self.replacements = 0
        self._make = make
        self._capabilities = capabilities
        self._version = version
        self._attempts = attempts
        self._deadlines = deadlines
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._closed = False
        self._coming: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def live(self) -> list[Member]:
        """Returns the replicas that are not lost, in the order in which they came."""
        return [member for member in self.members.values() if member.state != "lost"]

    def open(self) -> list[Member]:
        """Returns the replicas that take requests: those that serve, or, without any, those that sync."""
        serving = [member for member in self.members.values() if member.state == "serving"]
        return serving or [member for member in self.members.values() if member.state == "syncing"]

    @property
    def hopeless(self) -> bool:
        """Whether no replica takes requests, or will by itself."""
        return not self.open() and not self._coming

    def described(self) -> str:
        """For messages: every replica with its state."""
        states = [
            f"{member.name} is {member.state}" + (f" ({member.why})" if member.why else "")
            for member in self.members.values()
        ]
        return "; ".join(states) or "there is no replica"

    def notify(self) -> None:
        """Wakes those who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Returns after the next change."""
        await self._changed.wait()

    def published(self, update: WeightUpdate, receipt: WeightReceipt) -> None:
        """All replicas hold these weights now. The caller holds the turn."""
        self.wanted.update, self.wanted.receipt, self.wanted.without_weights = update, receipt, False

    async def join(self, name: str, engine: Engine) -> None:
        """Takes an engine on once it has what the others have; closes it if it cannot.

        Raises:
            EngineError: The name is taken, or the engine could not be brought to what the others hold.
        """
        async with self.turn:
            present = self.members.get(name)
            if present is not None and present.state != "lost":
                raise EngineError(f"replica {name!r}: is there already, and {present.state}")
            require_covered(name, engine, self._capabilities)
            try:
                async with asyncio.timeout(self._deadlines.sync_s):
                    await self.wanted.reach(engine)
            except TimeoutError as error:
                self._retire(engine)
                late = f"did not take weights and state within {self._deadlines.sync_s} s"
                raise EngineUnavailable(f"replica {name!r}: {late}") from error
            except EngineError as error:
                self._retire(engine)
                raise EngineError(f"replica {name!r}: could not be brought up: {error}") from error
            if self._closed:
                self._retire(engine)
                raise EngineClosed(f"replica {name!r}: the set was closed")
            held = self.wanted.update
            self.members[name] = Member(name, engine, version=self._version if held is None else held.version)
        self.notify()

    def lost(self, member: Member, why: str) -> None:
        """A replica died: its requests go elsewhere, and another is made in its place."""
        if member.state == "lost":
            return
        leaving = member.state == "draining"
        member.state, member.why = "lost", why
        self._count(member)
        logger.warning("replica %s is lost with %d requests: %s", member.name, len(member.flights()), why)
        for flight in member.flights():
            flight.cut()
        self._retire(member.engine)
        if self._make is not None and not leaving:
            self._coming.add(member.name)
            self._spawn(self._replace(member, self._make), f"replacement of replica {member.name}")
        self.notify()

    def part(self, member: Member) -> asyncio.Task[None] | None:
        """A replica leaves for good; returns the closing of its engine, None if it was lost before."""
        if member.state == "lost":
            return None
        self._count(member)
        member.state, member.why = "lost", "it was removed"
        return self._retire(member.engine)

    async def close(self) -> None:
        """Ends replacements, and waits for engines that are being closed."""
        self._closed = True
        replacing = [task for task in self._tasks if task.get_name().startswith("replacement")]
        for task in replacing:
            task.cancel()
        self.notify()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._deadlines.control_s)

    async def _replace(self, member: Member, make: Make) -> None:
        """Makes another engine under the name of one that died, and takes it on."""
        name, wait_s, why = member.name, _FIRST_WAIT_S, member.why
        try:
            for attempt in range(1, self._attempts + 1):
                member.why = f"{why}; replacement {attempt} of {self._attempts} is on its way"
                try:
                    async with asyncio.timeout(self._deadlines.start_s):
                        engine = await make(name)
                    await self.join(name, engine)
                except Exception as error:  # boundary: the caller's factory, and an engine nobody knows yet
                    said = str(error) or f"not made within {self._deadlines.start_s} s"
                    logger.warning("replica %s: replacement %d failed: %s", name, attempt, said)
                    member.why = f"{why}; replacement {attempt} failed: {said}"
                    if attempt < self._attempts:
                        await self._sleep(wait_s)
                        wait_s *= 2
                    continue
                self.replacements += 1
                logger.warning("replica %s serves again", name)
                return
        finally:
            self._coming.discard(name)
            self.notify()

    def _count(self, member: Member) -> None:
        self.sampled_by_lost += member.last_load.sampled_tokens
        self.prefilled_by_lost += member.last_load.prefilled_tokens or 0

    def _retire(self, engine: Engine) -> asyncio.Task[None]:
        """Closes an engine in the background; whatever comes of that."""
        return self._spawn(self._close(engine), "end of a replica")

    async def _close(self, engine: Engine) -> None:
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(self._deadlines.control_s):
                    await engine.close()
            except EngineError as error:
                logger.info("a replica that is gone could not be closed: %s", error)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
