"""Weights for engines on many hosts: one broadcast to a process group of the learner and all replicas.

A publication stays in the sender's memory, and a thread of the sender serves it in sessions. The first waits
for all replicas that are expected, a later one for those that come anew: a replacement, or the survivors of a
session in which a member died or stalled. They meet at a store that the sender serves.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from roll_rollout.sync.group import BACKENDS, Group, TorchGroup, host_address, meeting_point, prefixed
from roll_rollout.sync.manifest import Manifest
from roll_rollout.sync.packing import AnonymousRegion, pack
from roll_rollout.sync.transport import AdapterHeader, Arrival, Publication, SyncError, check_publication
from roll_rollout.weights import TensorBytes

KIND = "broadcast"
BUCKET_BYTES = 1 << 26

logger = logging.getLogger(__name__)

_POLL_S = 0.005
_LINGER_S = 0.5
"""How long after a failed session those are waited for that seemed to be behind."""

_GATHER_S = 0.1
"""How long a session of replicas that nobody expects waits for one more."""

OpenGroup: TypeAlias = Callable[..., Group]
"""As the constructor of `TorchGroup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Where receivers report: _Meeting(address="10.0.0.4", port=41233, topic="4-9f2c", ...)."""

    address: str
    port: int
    topic: str
    bucket_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A replica that asked for the weights; `process` differs after it was replaced."""

    ticket: int
    name: str
    process: str


class BroadcastSender:
    """Sends publications to a group of receivers.

    Args:
        receivers: Names of those that are expected; `BroadcastReceiver` has the same.
        backend: "gloo", "nccl" or "hccl".
        address: Of this host, by which the receivers reach it; None takes its own name.
        bucket_bytes: That are sent at a time.
        join_s: Seconds to wait for an expected receiver, then the session begins without it; also the seconds
            that a member may take for one bucket, then it counts as stalled.
        session_s: Seconds that all sessions of a publication have.
        open_group: Opens a process group.

    Attributes:
        missing: Names of the receivers that the last publication went on without.

    Raises:
        SyncError: The back-end is unknown.
    """

    def __init__(
        self,
        *,
        receivers: Sequence[str],
        backend: str = "gloo",
        address: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        join_s: float = 30.0,
        session_s: float = 600.0,
        open_group: OpenGroup = TorchGroup,
    ) -> None:
        if backend not in BACKENDS:
            raise SyncError(f"{KIND}: backend is {backend!r}, allowed is one of {BACKENDS}")
        self.missing: tuple[str, ...] = ()
        self._receivers = tuple(receivers)
        self._backend = backend
        self._address = address or host_address()
        self._bucket_bytes = bucket_bytes
        self._join_s, self._session_s = join_s, session_s
        self._open_group = open_group
        self._region = AnonymousRegion()
        self._store: Any = None
        self._server: threading.Thread | None = None
        self._stop = threading.Event()
        self._group: tuple[tuple[tuple[str, str], ...], str, Group] | None = None

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Copies the tensors, and begins to serve them. See `Sender.publish`."""
        self._end_server()
        if self._store is None:
            try:
                self._store = meeting_point(self._address, 0, serves=True, timeout_s=self._join_s)
            except RuntimeError as error:
                raise SyncError(f"{KIND}: no store can be served at {self._address}: {error}") from error
        manifest = pack(tensors, self._region, version=version, adapter=adapter)
        self.missing = ()
        topic = f"{version}-{secrets.token_hex(4)}"
        self._server = threading.Thread(
            target=self._serve, args=(topic, manifest), name="roll-broadcast", daemon=True
        )
        self._server.start()
        meeting = _Meeting(
            address=self._address,
            port=self._store.port,
            topic=topic,
            bucket_bytes=self._bucket_bytes,
            step_s=self._join_s,
        )
        return Publication(
            version=version,
            checksum=manifest.checksum,
            size=manifest.size,
            transport=KIND,
            handle=meeting,
        )

    def retire(self, version: int) -> None:
        """The next publication takes the place of this one. See `Sender.retire`."""

    def close(self) -> None:
        """Ends the thread and the group. See `Sender.close`."""
        self._end_server()
        self._group = self._store = None
        self._region = AnonymousRegion()

    def _end_server(self) -> None:
        if self._server is not None:
            self._stop.set()
            self._server.join()
            self._server = None
            self._stop.clear()

    def _serve(self, topic: str, manifest: Manifest) -> None:
        """Serves one publication, session after session, until the next one."""
        awaited, served, linger_s = set(self._receivers), set[int](), 0.0
        end = time.monotonic() + self._session_s
        while not self._stop.is_set() and time.monotonic() < end:
            members = self._gathered(topic, served, awaited, linger_s)
            served |= {member.ticket for member in members}
            if not members:
                return
            here = {member.name for member in members}
            self.missing = tuple(sorted({*self.missing, *awaited} - here))
            if awaited - here:
                absent = sorted(awaited - here)
                logger.warning("broadcast of version %d goes on without %s", manifest.version, absent)
            awaited = self._session(topic, manifest, members)
            linger_s = _LINGER_S if awaited else 0.0

    def _gathered(self, topic: str, served: set[int], awaited: set[str], linger_s: float) -> list[_Member]:
        """The members of the next session; none if there will be no other."""
        members: dict[int, _Member] = {}
        patience = self._join_s if awaited else _GATHER_S
        first = time.monotonic()
        while not self._stop.is_set():
            for ticket in range(1, int(self._store.add(f"{topic}/tickets", 0)) + 1):
                key = f"{topic}/ticket/{ticket}"
                if ticket in served or ticket in members or not self._store.check([key]):
                    continue
                name, process = json.loads(self._store.get(key))
                members[ticket] = _Member(ticket=ticket, name=name, process=process)
                first = time.monotonic() if not awaited and len(members) == 1 else first
            here = {member.name for member in members.values()}
            waited = time.monotonic() - first
            complete = bool(awaited) and awaited <= here and waited >= linger_s
            if members and (complete or waited > patience):
                return list(members.values())
            self._store.set(f"{topic}/awaited", json.dumps(sorted(awaited - here)))
            self._stop.wait(_POLL_S)
        return []

    def _session(self, topic: str, manifest: Manifest, members: list[_Member]) -> set[str]:
        """Sends everything to the members; returns those of a failed session that should come again."""
        # One that was replaced while it waited counts once, as its newest self.
        newest = sorted({member.name: member for member in members}.values(), key=lambda each: each.name)
        who = tuple((member.name, member.process) for member in newest)
        if self._group is None or self._group[0] != who:
            self._group = None
            prefix = f"group/{secrets.token_hex(8)}"
        else:
            prefix = self._group[1]
        for rank, member in enumerate(newest, start=1):
            told = {"prefix": prefix, "rank": rank, "size": len(newest) + 1}
            self._store.set(f"{topic}/told/{member.ticket}", json.dumps(told))
        try:
            if self._group is None:
                group = self._open_group(
                    self._backend,
                    prefixed(prefix, self._store),
                    rank=0,
                    size=len(newest) + 1,
                    address=self._address,
                    timeout_s=self._join_s,
                )
                self._group = (who, prefix, group)
            self._send(self._group[2], manifest)
        except RuntimeError as error:
            self._group = None
            blamed = self._behind(topic, newest)
            self.missing = tuple(sorted({*self.missing, *blamed}))
            logger.warning(
                "broadcast of version %d failed: %s; behind were %s", manifest.version, error, sorted(blamed)
            )
            return {member.name for member in newest} - blamed
        return set()

    def _send(self, group: Group, manifest: Manifest) -> None:
        text = np.frombuffer(manifest.encoded(), np.uint8).copy()
        group.broadcast(np.array([text.size, manifest.end], np.int64).view(np.uint8))
        group.broadcast(text)
        data = self._region.at_least(manifest.end)[: manifest.end]
        for start in range(0, manifest.end, self._bucket_bytes):
            if self._stop.is_set():
                raise RuntimeError("a newer version is published")
            group.broadcast(data[start : start + self._bucket_bytes])

    def _behind(self, topic: str, members: Sequence[_Member]) -> set[str]:
        """Those that had received less than others when a session failed."""
        reached = {}
        for member in members:
            key = f"{topic}/reached/{member.ticket}"
            reached[member.name] = int(self._store.get(key)) if self._store.check([key]) else -1
        most = max(reached.values())
        return {name for name, count in reached.items() if count < most}


class BroadcastReceiver:
    """Takes part in the sender's sessions.

    Args:
        name: By which the sender expects it.
        backend: As the sender's.
        open_group: Opens a process group.
    """

    def __init__(self, name: str, *, backend: str = "gloo", open_group: OpenGroup = TorchGroup) -> None:
        self._name = name
        self._backend = backend
        self._open_group = open_group
        self._process = secrets.token_hex(8)
        self._store: tuple[str, Any] | None = None
        self._group: tuple[str, Group] | None = None
        self._region = AnonymousRegion()

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns what a session brings; joins another if it fails. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        meeting = publication.handle
        if not isinstance(meeting, _Meeting):
            raise SyncError(f"{KIND}: the publication holds {type(meeting).__name__}")
        end, why = time.monotonic() + deadline_s, ""
        while (left := end - time.monotonic()) > 0:
            try:
                store = self._at(meeting, left)
                told = self._told(store, meeting, publication.version, end, why)
                manifest = self._received(store, meeting, told)
                return manifest.arrival(self._region.at_least(manifest.end))
            except RuntimeError as error:
                self._group = None
                self._store = None
                why = f"; the last session failed: {error}"
        where = f"{meeting.address}:{meeting.port}"
        raise SyncError(
            f"{KIND}: version {publication.version} did not come from {where} within {deadline_s:g} s{why}"
        )

    def release(self, publication: Publication) -> None:
        """Its memory is used again by the next version. See `Receiver.release`."""

    def close(self) -> None:
        """Leaves the group. See `Receiver.close`."""
        self._group = self._store = None
        self._region = AnonymousRegion()

    def _at(self, meeting: _Meeting, left: float) -> Any:
        """The sender's store."""
        where = f"{meeting.address}:{meeting.port}"
        if self._store is None or self._store[0] != where:
            client = meeting_point(
                meeting.address, meeting.port, serves=False, timeout_s=min(left, meeting.step_s)
            )
            self._store = (where, client)
        return self._store[1]

    def _told(
        self, store: Any, meeting: _Meeting, version: int, end: float, why: str
    ) -> dict[str, str | int]:
        """Joins; returns which group to be in."""
        ticket = int(store.add(f"{meeting.topic}/tickets", 1))
        store.set(f"{meeting.topic}/ticket/{ticket}", json.dumps([self._name, self._process]))
        key = f"{meeting.topic}/told/{ticket}"
        while not store.check([key]):
            if time.monotonic() > end:
                awaited = f"{meeting.topic}/awaited"
                names = json.loads(store.get(awaited)) if store.check([awaited]) else []
                rest = f"; awaited are {', '.join(names)}" if names else ""
                raise SyncError(f"{KIND}: version {version}: no session within the deadline{rest}{why}")
            time.sleep(_POLL_S)
        told: dict[str, str | int] = json.loads(store.get(key))
        return {**told, "ticket": ticket}

    def _received(self, store: Any, meeting: _Meeting, told: dict[str, str | int]) -> Manifest:
        prefix, reached = str(told["prefix"]), f"{meeting.topic}/reached/{told['ticket']}"
        if self._group is None or self._group[0] != prefix:
            group = self._open_group(
                self._backend,
                prefixed(prefix, store),
                rank=int(told["rank"]),
                size=int(told["size"]),
                address=None,
                timeout_s=meeting.step_s,
            )
            self._group = (prefix, group)
        group = self._group[1]
        sizes = np.zeros(16, np.uint8)
        group.broadcast(sizes)
        text_size, end = (int(each) for each in sizes.view(np.int64))
        text = np.zeros(text_size, np.uint8)
        group.broadcast(text)
        data = self._region.at_least(end)[:end]
        for index, start in enumerate(range(0, end, meeting.bucket_bytes)):
            store.set(reached, str(index))
            group.broadcast(data[start : start + meeting.bucket_bytes])
        store.set(reached, str(-(-end // meeting.bucket_bytes)))
        return Manifest.decoded(text.tobytes())
