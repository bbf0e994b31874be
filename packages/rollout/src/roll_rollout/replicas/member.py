"""One replica of a set, and the requests that it has in flight."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_rollout.completion import Completion
from roll_rollout.engine import Engine, EngineLoad
from roll_rollout.replicas.choice import ReplicaView
from roll_rollout.request import GenerateRequest
from roll_rollout.versions import VersionRuns

ReplicaState = Literal["serving", "syncing", "draining", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """How a replica is, for people: `ReplicaStatus(name="b", state="lost", version=6, ...)`.

    Attributes:
        name: Of the replica.
        state: "serving", "syncing" (its weights are being replaced), "draining" (it takes no more requests),
            or "lost" (it died; `why` says whether it is being replaced).
        version: Of its weights, as it acknowledged them last.
        requests: In flight there.
        why: It is not serving.
    """

    name: str
    state: ReplicaState
    version: int
    requests: int
    why: str


class Flight:
    """A request on its way through a set of replicas.

    Args:
        request: As it was asked for.

    Attributes:
        request: As it was asked for.
        kept: Tokens that a replica drew which the request has left since.
        aborted: Whether the caller has ended it.
        moving: Whether its replica was told to end it so that it can go on elsewhere.
        deaths: Replicas that died under it.
        ended: Set when it is over.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.kept: Completion | None = None
        self.aborted = False
        self.moving = False
        self.deaths: list[str] = []
        self.ended = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self._cut = False

    @property
    def outstanding(self) -> int:
        """Most tokens that are still to be read and drawn."""
        return len(self.request.prompt_ids) + self.request.sampling.max_tokens

    def asked(self) -> GenerateRequest:
        """Returns what a replica is asked for now: the request, or what is left of it."""
        return self.request if self.kept is None else self.request.resumed(self.kept)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """While the body runs, a replica is waited for; `cut` ends that with TimeoutError."""
        async with asyncio.timeout(0.0 if self._cut else None) as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None

    def cut(self) -> None:
        """Ends the wait for a replica that will not answer any more, the present one and later ones."""
        self._cut = True
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def leave(self) -> None:
        """The replica is not waited for any more, so that there is nothing to cut."""
        self._cut = False

    def untouched(self, version: int) -> Completion:
        """Returns its aborted completion while no replica has it: what was kept, or no tokens."""
        kept = self.kept or self.request.partial
        if kept is not None and kept.request_id == self.request.id:
            return kept
        return Completion(
            request_id=self.request.id,
            prompt_ids=self.request.prompt_ids,
            token_ids=np.zeros(0, np.int32) if kept is None else kept.token_ids,
            logprobs=np.zeros(0, np.float32) if kept is None else kept.logprobs,
            versions=VersionRuns(version).runs(0) if kept is None else kept.versions,
            finish_reason="abort",
            seed=self.request.seed,
        )


class Member:
    """A replica of a set.

    Args:
        name: Names it in messages.
        engine: Belongs to the set.
        version: Of its weights.

    Attributes:
        state: See `ReplicaStatus`.
        why: It is not serving.
        version: Of its weights.
        last_load: As it said last.
        empty: Set while it has no request.
    """

    def __init__(self, name: str, engine: Engine, *, version: int) -> None:
        self.name = name
        self.engine = engine
        self.state: ReplicaState = "serving"
        self.why = ""
        self.version = version
        self.last_load = EngineLoad(running=0, waiting=0, kv_tokens=0, sampled_tokens=0)
        self.empty = asyncio.Event()
        self.empty.set()
        self._flights: dict[str, Flight] = {}

    def flights(self) -> list[Flight]:
        """Returns the requests in flight here."""
        return list(self._flights.values())

    def board(self, flight: Flight) -> None:
        """A request goes to this replica."""
        self._flights[flight.request.id] = flight
        self.empty.clear()

    def leave(self, flight: Flight) -> None:
        """A request has left."""
        flight.leave()
        self._flights.pop(flight.request.id, None)
        if not self._flights:
            self.empty.set()

    def view(self) -> ReplicaView:
        """Returns what a chooser sees."""
        outstanding = sum(flight.outstanding for flight in self._flights.values())
        return ReplicaView(
            name=self.name, requests=len(self._flights), outstanding=outstanding, version=self.version
        )

    def status(self) -> ReplicaStatus:
        """Returns how it is."""
        return ReplicaStatus(
            name=self.name,
            state=self.state,
            version=self.version,
            requests=len(self._flights),
            why=self.why,
        )
