"""Requests on their way through a set of replicas: sent to one, and on to another if it dies or leaves."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from roll_rollout.capabilities import EngineCapabilities, StreamingEngine
from roll_rollout.chunk import CompletionChunk, last_chunk
from roll_rollout.completion import Completion
from roll_rollout.errors import EngineClosed, EngineError, EngineUnavailable
from roll_rollout.replicas.choice import Chooser
from roll_rollout.replicas.deadlines import ReplicaDeadlines
from roll_rollout.replicas.member import Flight, Member
from roll_rollout.replicas.roster import DEATHS, Roster
from roll_rollout.request import GenerateRequest

_ABORT_AGAIN_S = 0.05
"""Seconds until a replica is told once more to end a request that may not have reached it; they double."""


class Dispatch:
    """Sends requests to replicas.

    Args:
        roster: The replicas.
        choose: Chooses one for each request.
        capabilities: Of the set.
        deadlines: How long one is waited for.
        deaths: Replicas that may die under one request before it fails.

    Attributes:
        closed: Whether the set is closed.
    """

    def __init__(
        self,
        roster: Roster,
        choose: Chooser,
        *,
        capabilities: EngineCapabilities,
        deadlines: ReplicaDeadlines,
        deaths: int,
    ) -> None:
        self.closed = False
        self._roster = roster
        self._choose = choose
        self._capabilities = capabilities
        self._deadlines = deadlines
        self._deaths = deaths
        self._flights: dict[str, Flight] = {}

    @property
    def requests(self) -> int:
        """How many are in flight."""
        return len(self._flights)

    def users_of(self, adapter: str) -> list[str]:
        """Returns the ids of requests in flight that ask for an adapter."""
        return [each for each, flight in self._flights.items() if flight.request.adapter == adapter]

    async def complete(self, request: GenerateRequest) -> Completion:
        """Returns the completion of a request."""
        flight = self._take_off(request)
        try:
            while (member := await self._replica_for(flight)) is not None:
                completion = await self._tried(member, flight)
                if completion is not None:
                    return completion
            return flight.untouched(self._version())
        finally:
            self._land(flight)

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the completion of a request in pieces.

        A request whose replica died starts anew in silence: what was handed out stays if it is drawn again,
        and is an error if it is not.
        """
        flight = self._take_off(request)
        sent: list[int] = []
        completion: Completion | None = None
        try:
            while completion is None:
                member = await self._replica_for(flight)
                if member is None:
                    completion = flight.untouched(self._version())
                    break
                async with aclosing(self._pieces(member, flight)) as pieces:
                    async for piece in pieces:
                        fresh = _beyond(piece, sent, member.name)
                        if piece.completion is not None:
                            completion = self._kept_or_done(flight, piece.completion)
                        elif fresh is not None:
                            sent.extend(fresh.token_ids.tolist())
                            yield fresh
            yield last_chunk(completion, start=len(sent))
        finally:
            self._land(flight)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests with the tokens they have; returns when they have ended."""
        flights = [self._flights[each] for each in request_ids if each in self._flights]
        for flight in flights:
            flight.aborted = True
        self._roster.notify()
        await self.stop(flights)

    async def stop(self, flights: Sequence[Flight]) -> None:
        """Tells the replicas of requests to end them, again and again, until they have left.

        A replica that does not within the deadline is lost.
        """
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._deadlines.control_s, _ABORT_AGAIN_S
        while left := self._on_replicas(flights):
            if loop.time() >= deadline:
                late = f"did not end requests within {self._deadlines.control_s} s of being told to"
                for member in left:
                    self._roster.lost(member, late)
            calls = [self._told_to_abort(member, ids, deadline) for member, ids in left.items()]
            await asyncio.gather(*calls)
            waits = [asyncio.ensure_future(flight.ended.wait()) for flight in flights]
            await asyncio.wait(waits, timeout=0 if not self._on_replicas(flights) else pause)
            for wait in waits:
                wait.cancel()
            pause *= 2
        for flight in flights:
            if flight.aborted:
                await flight.ended.wait()

    def _on_replicas(self, flights: Sequence[Flight]) -> dict[Member, list[str]]:
        """Returns the ids of those that a replica still has and that are to end."""
        found: dict[Member, list[str]] = {}
        for member in self._roster.live():
            here = {flight for flight in member.flights() if flight.aborted or flight.moving}
            ids = [flight.request.id for flight in flights if flight in here]
            if ids:
                found[member] = ids
        return found

    async def _told_to_abort(self, member: Member, ids: list[str], deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await member.engine.abort(ids)
        except TimeoutError:
            return
        except DEATHS as error:
            self._roster.lost(member, str(error))

    def _take_off(self, request: GenerateRequest) -> Flight:
        where = f"request {request.id!r}"
        if self.closed:
            raise EngineClosed(f"{where}: the engine is closed")
        if request.id in self._flights:
            raise EngineError(f"{where}: its id is in flight already")
        flight = self._flights[request.id] = Flight(request)
        return flight

    def _land(self, flight: Flight) -> None:
        self._flights.pop(flight.request.id, None)
        flight.ended.set()

    async def _replica_for(self, flight: Flight) -> Member | None:
        """Returns the replica that a request goes to, once there is one; None if it was aborted.

        Raises:
            EngineUnavailable: There is none, and none will come or came in time; says how each is.
        """
        where, roster = f"request {flight.request.id!r}", self._roster
        deadline = asyncio.get_running_loop().time() + self._deadlines.serve_s
        while not flight.aborted:
            if self.closed:
                raise EngineClosed(f"{where}: the engine was closed")
            members = roster.open()
            if members:
                return self._chosen(flight, _as_new(flight, members))
            if roster.hopeless:
                raise EngineUnavailable(f"{where}: no replica serves: {roster.described()}")
            try:
                async with asyncio.timeout_at(deadline):
                    await roster.change()
            except TimeoutError as error:
                late = f"no replica served within {self._deadlines.serve_s} s"
                raise EngineUnavailable(f"{where}: {late}: {roster.described()}") from error
        return None

    def _chosen(self, flight: Flight, members: Sequence[Member]) -> Member:
        name = self._choose(flight.asked(), [member.view() for member in members])
        for member in members:
            if member.name == name:
                return member
        allowed = [member.name for member in members]
        raise EngineError(
            f"request {flight.request.id!r}: the chooser named replica {name!r}, allowed are {allowed}"
        )

    async def _tried(self, member: Member, flight: Flight) -> Completion | None:
        """Returns what a replica made of a request; None if it goes on elsewhere."""
        member.board(flight)
        try:
            async with flight.waiting():
                completion = await member.engine.generate(flight.asked())
        except (TimeoutError, *DEATHS) as error:
            self._left_by_death(member, flight, error)
            return None
        finally:
            member.leave(flight)
        return self._kept_or_done(flight, completion)

    async def _pieces(self, member: Member, flight: Flight) -> AsyncGenerator[CompletionChunk, None]:
        """Yields the chunks of a replica; ends early, without the completion, if it dies."""
        engine = member.engine
        if not isinstance(engine, StreamingEngine):
            raise EngineError(f"request {flight.request.id!r}: replica {member.name!r} does not stream")
        member.board(flight)
        stream: Any = engine.stream(flight.asked())
        try:
            async with aclosing(stream):
                while True:
                    async with flight.waiting():
                        piece = await anext(stream, None)
                    if piece is None:
                        return
                    yield piece
        except (TimeoutError, *DEATHS) as error:
            self._left_by_death(member, flight, error)
        finally:
            member.leave(flight)

    def _left_by_death(self, member: Member, flight: Flight, error: Exception) -> None:
        """Lets a request go on elsewhere, if it may.

        Raises:
            EngineClosed: The set was closed.
            EngineUnavailable: Too many replicas died under the request.
            TimeoutError: The engine's own.
        """
        member.leave(flight)
        where = f"request {flight.request.id!r}"
        if self.closed:
            raise EngineClosed(f"{where}: the engine was closed") from error
        if isinstance(error, DEATHS):
            self._roster.lost(member, str(error))
        elif member.state != "lost" and not flight.moving:
            raise error
        if flight.moving:
            flight.moving = False
            return
        flight.deaths.append(member.name)
        if len(flight.deaths) > self._deaths:
            died = f"{len(flight.deaths)} replicas died under it ({', '.join(flight.deaths)})"
            raise EngineUnavailable(f"{where}: {died}, the last with: {member.why}") from error

    def _kept_or_done(self, flight: Flight, completion: Completion) -> Completion | None:
        """Returns a completion that is done; None if its replica ended it so that it goes on elsewhere."""
        moved, flight.moving = flight.moving, False
        if completion.finish_reason != "abort" or flight.aborted or not moved:
            return completion
        if len(completion) and self._capabilities.continuation != "none":
            flight.kept = completion
        return None

    def _version(self) -> int:
        return max((member.version for member in self._roster.members.values()), default=0)


def _as_new(flight: Flight, members: Sequence[Member]) -> Sequence[Member]:
    """Returns the replicas whose weights are not older than those that drew a request's tokens, if any."""
    if flight.kept is None:
        return members
    newest = flight.kept.newest_version
    return [member for member in members if member.version >= newest] or members


def _beyond(piece: CompletionChunk, sent: Sequence[int], name: str) -> CompletionChunk | None:
    """Returns what of a chunk was not handed out yet; None without any.

    Raises:
        EngineUnavailable: What was handed out is drawn otherwise now.
    """
    tokens = piece.token_ids.tolist()
    known = sent[piece.start : piece.start + len(tokens)]
    if tokens[: len(known)] != list(known):
        raise EngineUnavailable(
            f"request {piece.request_id!r}: a replica died in the middle of its stream, and {name!r} drew "
            "other tokens than had been handed out"
        )
    fresh = tokens[len(known) :]
    if not fresh:
        return None
    return CompletionChunk(
        request_id=piece.request_id,
        start=piece.start + len(known),
        token_ids=np.array(fresh, np.int32),
        logprobs=piece.logprobs[len(known) :],
        completion=None,
    )
