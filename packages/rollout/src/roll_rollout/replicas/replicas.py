"""A set of engines that is an `Engine` itself."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import EngineCapabilities, PauseMode
from roll_rollout.chunk import CompletionChunk
from roll_rollout.completion import Completion
from roll_rollout.engine import Engine, EngineLoad
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.replicas import engine_calls
from roll_rollout.replicas.choice import Chooser, LeastOutstanding
from roll_rollout.replicas.deadlines import ReplicaDeadlines
from roll_rollout.replicas.dispatch import Dispatch
from roll_rollout.replicas.fan_out import ask_all
from roll_rollout.replicas.member import Member, ReplicaStatus
from roll_rollout.replicas.rolling import roll
from roll_rollout.replicas.roster import Roster
from roll_rollout.replicas.shared_capabilities import shared_capabilities
from roll_rollout.request import GenerateRequest
from roll_rollout.weights import WeightReceipt, WeightUpdate, weights_checksum


class Replicas:
    """An `Engine` made of others: any engines of one model, in this process or behind a proxy.

    A request goes to the replica that `choose` names. If its replica dies (`EngineUnavailable`, or
    `EngineClosed` without our doing), the request starts again on another one, from the same seed; if its
    replica is removed, it goes on elsewhere with the tokens it has. A replica that died, or did not answer in
    time, is lost: `make` makes another one, which is brought to the weights and adapters that were published
    last before it serves.

    Weights are updated in turn, so that at most `standing_still` replicas stand still and the others serve.
    Meanwhile tokens are drawn by old and new weights, and every one carries its version. The first replica
    that refuses an update refuses it for all; one that refuses what another one took is lost.

    What the set can do is what all of its engines can do.

    Args:
        engines: By name; they belong to the set from now on.
        make: Makes an engine in the place of one that died, under its name; None leaves its place empty.
        choose: Chooses a replica for each request.
        standing_still: Most replicas that take an update at once.
        deadlines: How long one replica is waited for.
        deaths: Replicas that may die under one request before it fails.
        attempts: Most times that `make` is called for one death.
        version: Policy version of the engines' weights.
        sleep: Waits for a number of seconds; a test passes its own.

    Raises:
        EngineError: There is no engine, or a number is out of range.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        make: Callable[[str], Awaitable[Engine]] | None = None,
        choose: Chooser | None = None,
        standing_still: int = 1,
        deadlines: ReplicaDeadlines | None = None,
        deaths: int = 2,
        attempts: int = 3,
        version: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not engines or standing_still < 1 or deaths < 0 or attempts < 1:
            got = f"{len(engines)} engines, {standing_still=}, {deaths=}, {attempts=}"
            raise EngineError(f"Replicas: got {got}, allowed are 1 or more of each, and deaths of 0 or more")
        self._deadlines = deadlines or ReplicaDeadlines()
        self._standing_still = standing_still
        self._capabilities = shared_capabilities(list(engines.values()))
        self._roster = Roster(
            make=make,
            capabilities=self._capabilities,
            attempts=attempts,
            deadlines=self._deadlines,
            version=version,
            sleep=sleep,
        )
        for name, engine in engines.items():
            self._roster.members[name] = Member(name, engine, version=version)
        self._dispatch = Dispatch(
            self._roster,
            choose or LeastOutstanding(),
            capabilities=self._capabilities,
            deadlines=self._deadlines,
            deaths=deaths,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """What all engines of the set can do. See `DescribedEngine`."""
        return self._capabilities

    @property
    def replacements(self) -> int:
        """Replicas that were replaced since the start."""
        return self._roster.replacements

    def status(self) -> list[ReplicaStatus]:
        """Returns how each replica is."""
        return [member.status() for member in self._roster.members.values()]

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request. See `Engine.generate`.

        Raises:
            EngineUnavailable: No replica serves, or too many died under the request; names them.
        """
        return await self._dispatch.complete(request)

    def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of one request in pieces. See `StreamingEngine.stream`.

        Raises:
            EngineUnavailable: A replica died, and another one drew other tokens than were handed out.
        """
        return self._dispatch.stream(request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests wherever they are. See `Engine.abort`."""
        await self._dispatch.abort(request_ids)

    async def add(self, name: str, engine: Engine) -> None:
        """Takes an engine on once it has the weights and adapters that the others have.

        Raises:
            EngineError: The name is taken, the engine can do less than the set, or it does not take the
                weights.
        """
        self._require_open("add")
        await self._roster.join(name, engine)

    async def drain(self, name: str) -> None:
        """Sends no more requests to a replica; returns when those it has have ended.

        Raises:
            EngineError: There is no such replica, or it still has requests at the deadline; says how many.
        """
        self._require_open("drain")
        member = self._member(name)
        if member.state != "lost":
            member.state, member.why = "draining", "it was told to drain"
        try:
            async with asyncio.timeout(self._deadlines.drain_s):
                await member.empty.wait()
        except TimeoutError as error:
            left = [flight.request.id for flight in member.flights()]
            busy = f"has {len(left)} requests after {self._deadlines.drain_s} s, such as {left[0]!r}"
            raise EngineError(f"drain: replica {name!r} {busy}") from error

    async def remove(self, name: str) -> None:
        """Takes a replica out and closes its engine. Its requests go on elsewhere.

        They keep the tokens they have where engines can go on from them, and start again otherwise.

        Raises:
            EngineError: There is no such replica.
        """
        self._require_open("remove")
        member = self._member(name)
        if member.state != "lost":
            member.state, member.why = "draining", "it is being removed"
            flights = member.flights()
            for flight in flights:
                flight.moving = True
                if self._capabilities.continuation == "none":
                    flight.cut()
            await self._dispatch.stop(flights)
        closing = self._roster.part(member)
        if self._roster.members.get(name) is member:
            del self._roster.members[name]
        self._roster.notify()
        if closing is not None:
            await closing

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces the weights of all replicas in turn. See `Engine.update_weights`.

        A call that is cancelled leaves the update to go on by itself, so that no replica stays behind.

        Returns:
            The receipt that every replica gave; those that gave another one are lost.

        Raises:
            EngineUnavailable: No replica took it; says how each is.
        """
        self._require_open("update_weights")
        if self._roster.wanted.asleep_at:
            raise EngineError("update_weights: the engine is asleep, wake() comes first")
        return await _to_the_end(self._roll_weights(update))

    async def load(self) -> EngineLoad:
        """Returns how busy all replicas are together; requests that wait for a replica are waiting."""
        loads: dict[str, EngineLoad] = {}
        if self._roster.live():
            loads = await ask_all(
                self._roster, "load", lambda engine: engine.load(), deadline_s=self._deadlines.control_s
            )
        for name, load in loads.items():
            self._roster.members[name].last_load = load
        running = sum(load.running for load in loads.values())
        prefilled = [load.prefilled_tokens for load in loads.values()]
        capacity = [load.kv_capacity for load in loads.values()]
        return EngineLoad(
            running=running,
            waiting=max(0, self._dispatch.requests - running),
            kv_tokens=sum(load.kv_tokens for load in loads.values()),
            sampled_tokens=self._roster.sampled_by_lost + sum(each.sampled_tokens for each in loads.values()),
            prefilled_tokens=_sum(prefilled, self._roster.prefilled_by_lost),
            kv_capacity=_sum(capacity, 0),
        )

    async def pause(self, mode: PauseMode) -> None:
        """Stands still, all replicas. See `PausableEngine.pause`."""
        self._require_open("pause")
        if mode not in self._capabilities.pause_modes:
            raise EngineError(f"pause: mode is {mode!r}, allowed is one of {self._capabilities.pause_modes}")
        patient = mode == "wait"
        async with self._roster.turn:
            await ask_all(
                self._roster,
                f"pause({mode!r})",
                partial(engine_calls.pause, mode=mode),
                deadline_s=self._deadlines.drain_s if patient else self._deadlines.control_s,
                patient=patient,
            )
            self._roster.wanted.paused = True

    async def resume(self) -> None:
        """Goes on. See `PausableEngine.resume`."""
        async with self._roster.turn:
            self._roster.wanted.paused = False
            await self._ask("resume", engine_calls.resume)

    async def sleep(self, level: int) -> None:
        """Frees the memory of all replicas. See `SleepingEngine.sleep`."""
        self._require_open("sleep")
        if level not in self._capabilities.sleep_levels:
            allowed = self._capabilities.sleep_levels or "none"
            raise EngineError(f"sleep: level is {level}, allowed is {allowed}")
        wanted = self._roster.wanted
        async with self._roster.turn:
            await self._ask(f"sleep({level})", partial(engine_calls.sleep, level=level))
            wanted.asleep_at = max(level, wanted.asleep_at)
            wanted.without_weights = wanted.without_weights or level == 2

    async def wake(self) -> None:
        """Takes the memory back. See `SleepingEngine.wake`."""
        self._require_open("wake")
        async with self._roster.turn:
            self._roster.wanted.asleep_at = 0
            await self._ask("wake", engine_calls.wake)

    async def reset_prefix_cache(self) -> None:
        """Forgets computed prompts everywhere. See `PrefixCachingEngine`."""
        self._require_open("reset_prefix_cache")
        await self._ask("reset_prefix_cache", engine_calls.forget_prompts)

    async def load_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        """Takes on a LoRA adapter, everywhere. See `AdapterEngine.load_adapter`.

        Raises:
            WeightMismatch: It does not fit the model, and no replica has it.
        """
        self._require_open("load_adapter")
        return await _to_the_end(self._roll_adapter(update))

    async def unload_adapter(self, name: str) -> None:
        """Forgets a LoRA adapter, everywhere. See `AdapterEngine.unload_adapter`."""
        self._require_open("unload_adapter")
        loaded = self._roster.wanted.adapters
        if name not in loaded:
            raise EngineError(f"unload_adapter: {name!r} is unknown, loaded are {sorted(loaded)}")
        users = self._dispatch.users_of(name)
        if users:
            raise EngineError(
                f"unload_adapter: {name!r} is in use by {len(users)} requests, such as {users[0]!r}"
            )
        async with self._roster.turn:
            del loaded[name]
            await self._ask("unload_adapter", partial(engine_calls.unload_adapter, name=name))

    async def adapters(self) -> dict[str, int]:
        """Returns the policy version of each loaded adapter."""
        return {name: update.version for name, update in self._roster.wanted.adapters.items()}

    async def check_health(self) -> None:
        """Asks every replica; those that are not well are lost, and replaced. See `CheckedEngine`.

        Raises:
            EngineUnavailable: None is well; says how each is.
        """
        self._require_open("check_health")
        await self._ask("check_health", engine_calls.require_well)

    async def close(self) -> None:
        """Ends all requests with `EngineClosed` and closes all engines. See `Engine.close`."""
        self._dispatch.closed = True
        for member in self._roster.live():
            self._roster.part(member)
        await self._roster.close()

    async def _roll_weights(self, update: WeightUpdate) -> WeightReceipt:
        roster = self._roster
        async with roster.turn:
            receipt = await roll(
                roster,
                f"weight update to version {update.version}",
                lambda engine: engine.update_weights(update),
                version=update.version,
                checksum=lambda: weights_checksum(update.buckets),
                at_once=self._standing_still,
                deadline_s=self._deadlines.sync_s,
            )
            roster.published(update, receipt)
        return receipt

    async def _roll_adapter(self, update: AdapterUpdate) -> WeightReceipt:
        roster = self._roster
        async with roster.turn:
            receipt = await roll(
                roster,
                f"adapter {update.name!r} at version {update.version}",
                partial(engine_calls.load_adapter, update=update),
                version=None,
                checksum=lambda: weights_checksum(update.buckets),
                at_once=self._standing_still,
                deadline_s=self._deadlines.sync_s,
            )
            roster.wanted.adapters[update.name] = update
        return receipt

    async def _ask(self, what: str, call: Callable[[Engine], Awaitable[None]]) -> None:
        await ask_all(self._roster, what, call, deadline_s=self._deadlines.control_s)

    def _member(self, name: str) -> Member:
        member = self._roster.members.get(name)
        if member is None:
            raise EngineError(f"replica {name!r}: is unknown, there are {sorted(self._roster.members)}")
        return member

    def _require_open(self, call: str) -> None:
        if self._dispatch.closed:
            raise EngineClosed(f"{call}: the engine is closed")


async def _to_the_end(update: Coroutine[object, object, WeightReceipt]) -> WeightReceipt:
    """Returns what an update returns; a caller that is cancelled leaves it to go on."""
    task = asyncio.get_running_loop().create_task(update, name="rolling update")
    # Retrieved also where nobody waits any more.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def _sum(parts: Sequence[int | None], more: int) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) + more if len(known) == len(parts) else None
