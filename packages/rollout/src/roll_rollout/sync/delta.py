"""Only what changed since the version before, over another transport.

The sender publishes all weights now and then (the anchor), and between two anchors the elements that changed.
A receiver that has an earlier version of the same chain takes the changes since; any other, such as a new
replica, begins with the anchor.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from roll_rollout.errors import WeightMismatch
from roll_rollout.sync.changes import Codec, apply_changes, changes_between
from roll_rollout.sync.manifest import Manifest, TensorRecord
from roll_rollout.sync.packing import AnonymousRegion, check_tensor, pack
from roll_rollout.sync.transport import (
    AdapterHeader,
    Arrival,
    Publication,
    Receiver,
    Sender,
    SyncError,
    check_publication,
)
from roll_rollout.weight_digest import Digester
from roll_rollout.weights import TensorBytes, WeightUpdate, checked_checksum

KIND = "delta"

_MANIFEST = "delta:manifest"
_WORTH = 0.8
"""Share of a version's bytes above which it is sent whole: changes cost time at both ends."""

_GLANCE = 1 << 25
"""Bytes that are compared before it is decided that the rest is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Link:
    base: int
    version: int
    changes: Publication


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chain:
    name: str
    anchor: Publication
    links: tuple[_Link, ...] = ()


class _Held:
    """A version in memory of this process."""

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        self._region = AnonymousRegion()

    def take(self, tensors: Iterable[TensorBytes], version: int) -> Manifest:
        """Puts a whole version in the place of whatever was there."""
        self.manifest = None
        self.manifest = pack(tensors, self._region, version=version)
        return self.manifest

    def data(self, manifest: Manifest) -> np.ndarray:
        """All bytes of a version."""
        return self._region.at_least(manifest.end)

    def view(self, record: TensorRecord) -> np.ndarray:
        """The bytes of a tensor."""
        end = record.start + record.size
        return self._region.at_least(end)[record.start : end]


class DeltaSender:
    """Publishes changes through another sender; holds the last version in memory to compare with.

    Args:
        sender: Keeps its publications until they are retired (`keep=None`).
        full_every: Publications after which one brings all weights again, at least 1.
        level: Of the compression, 1 to 9; 0 for none.
    """

    def __init__(self, sender: Sender, *, full_every: int = 20, level: int = 1) -> None:
        if full_every < 1:
            raise SyncError(f"{KIND}: full_every is {full_every}, allowed is 1 or more")
        self._sender = sender
        self._full_every = full_every
        self._codec = Codec.best(level)
        self._held = _Held()
        self._chain: _Chain | None = None
        self._adapter: int | None = None

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Publishes what changed, or everything. See `Sender.publish`."""
        if adapter is not None:
            return self._publish_adapter(tensors, version, adapter)
        before, chain = self._held.manifest, self._chain
        self._chain = None
        if chain is None or before is None or len(chain.links) + 1 >= self._full_every:
            manifest = self._held.take(tensors, version)
        else:
            manifest, parts = self._compared(tensors, before, version)
            if parts is not None:
                sent = self._sender.publish(parts, version=version)
                link = _Link(base=before.version, version=version, changes=sent)
                self._chain = replace(chain, links=(*chain.links, link))
                return _publication(manifest, self._chain)
        whole = ((each.name, each.dtype, each.shape, self._held.view(each)) for each in manifest.records)
        anchor = self._sender.publish(whole, version=version)
        self._retire(chain, but=version)
        self._chain = _Chain(name=secrets.token_hex(8), anchor=anchor)
        return _publication(manifest, self._chain)

    def retire(self, version: int) -> None:
        """Frees nothing: later versions build on earlier ones, and an anchor replaces them all."""

    def close(self) -> None:
        """Frees everything. See `Sender.close`."""
        self._chain, self._held = None, _Held()
        self._sender.close()

    def _publish_adapter(
        self, tensors: Iterable[TensorBytes], version: int, adapter: AdapterHeader
    ) -> Publication:
        """Adapters are small: they go as they are."""
        sent = self._sender.publish(tensors, version=version, adapter=adapter)
        if self._adapter is not None and self._adapter != version:
            self._sender.retire(self._adapter)
        self._adapter = version
        chain = _Chain(name=secrets.token_hex(8), anchor=sent)
        return replace(sent, transport=KIND, handle=chain)

    def _compared(
        self, tensors: Iterable[TensorBytes], before: Manifest, version: int
    ) -> tuple[Manifest, list[TensorBytes] | None]:
        """Takes on a version; returns its manifest and its changes, or None where they are not worth it."""
        self._held.manifest = None
        parts: list[TensorBytes] = []
        records: dict[str, TensorRecord] = {}
        seen = sent = 0
        worth = True
        known = {record.name: record for record in before.records}
        with Digester(before.algorithm) as digester:
            for name, dtype, shape, payload in tensors:
                check_tensor(name, dtype, shape, payload, records)
                record = known.get(name)
                if record is None or (record.dtype, record.shape) != (dtype, shape):
                    _refuse(before, name, dtype, shape)
                target = self._held.view(record)
                if worth:
                    changes = changes_between(target, payload, dtype=dtype, codec=self._codec)
                    parts.append((name, "uint8", (changes.size,), changes))
                    seen, sent = seen + payload.size, sent + changes.size
                    worth = seen < _GLANCE or sent < _WORTH * seen
                digest = digester.copy(name, dtype, shape, payload, target)
                records[name] = replace(record, digest=digest)
        if len(records) != len(known):
            lost = sorted(known.keys() - records.keys())
            raise SyncError(f"{KIND}: tensor {lost[0]!r} of version {before.version} is not in {version}")
        in_place = sorted(records.values(), key=lambda each: each.start)
        manifest = replace(before, version=version, records=tuple(in_place))
        self._held.manifest = manifest
        if not worth or sent >= _WORTH * manifest.size:
            return manifest, None
        text = np.frombuffer(manifest.encoded(), np.uint8)
        return manifest, [*parts, (_MANIFEST, "uint8", (text.size,), text)]

    def _retire(self, chain: _Chain | None, *, but: int) -> None:
        if chain is None:
            return
        for version in (chain.anchor.version, *(link.version for link in chain.links)):
            if version != but:
                self._sender.retire(version)


class DeltaReceiver:
    """Fetches changes through another receiver; holds the version it has in memory.

    Args:
        receiver: Of the transport under the sender's.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._held = _Held()
        self._chain = ""

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns the version, made of what is here and what changed. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        chain = publication.handle
        if not isinstance(chain, _Chain):
            raise SyncError(f"{KIND}: the publication holds {type(chain).__name__}")
        known = self._held.manifest if self._chain == chain.name else None
        links = [link for link in chain.links if known is not None and link.base >= known.version]
        self._chain = ""
        if known is None or known.version not in (publication.version, *(link.base for link in links)):
            arrival = self._receiver.fetch(chain.anchor, deadline_s=deadline_s)
            if not isinstance(arrival, WeightUpdate):
                return arrival
            known = self._taken(arrival, chain.anchor)
            links = list(chain.links)
        for link in links:
            known = self._advanced(known, link, deadline_s)
        if known.checksum != publication.checksum:
            raise WeightMismatch(
                f"{KIND}: version {publication.version} came out with {known.checksum}, published was "
                f"{publication.checksum}"
            )
        self._held.manifest, self._chain = known, chain.name
        return known.arrival(self._held.data(known))

    def release(self, publication: Publication) -> None:
        """Holds what the next version builds on. See `Receiver.release`."""

    def close(self) -> None:
        """Frees everything. See `Receiver.close`."""
        self._held, self._chain = _Held(), ""
        self._receiver.close()

    def _taken(self, arrival: WeightUpdate, anchor: Publication) -> Manifest:
        manifest = self._held.take(arrival.tensors(), arrival.version)
        self._receiver.release(anchor)
        if manifest.checksum != anchor.checksum:
            raise WeightMismatch(
                f"{KIND}: version {arrival.version} arrived with {manifest.checksum}, published was "
                f"{anchor.checksum}"
            )
        return manifest

    def _advanced(self, known: Manifest, link: _Link, deadline_s: float) -> Manifest:
        """The next version, in the place of the one that is known."""
        arrival = self._receiver.fetch(link.changes, deadline_s=deadline_s)
        if not isinstance(arrival, WeightUpdate):
            raise SyncError(f"{KIND}: the changes of version {link.version} are an adapter")
        checked_checksum(arrival)
        records = {record.name: record for record in known.records}
        manifest: Manifest | None = None
        for name, _, _, payload in arrival.tensors():
            if name == _MANIFEST:
                manifest = Manifest.decoded(payload.tobytes())
            elif name in records:
                apply_changes(payload, self._held.view(records[name]), name=name)
            else:
                raise WeightMismatch(f"{KIND}: version {link.version} changes the unknown tensor {name!r}")
        self._receiver.release(link.changes)
        if manifest is None:
            raise SyncError(f"{KIND}: the changes of version {link.version} came without their manifest")
        return manifest


def _publication(manifest: Manifest, chain: _Chain) -> Publication:
    return Publication(
        version=manifest.version,
        checksum=manifest.checksum,
        size=manifest.size,
        transport=KIND,
        handle=chain,
    )


def sent_bytes(publication: Publication) -> Iterator[tuple[int, int]]:
    """Yields version and bytes of everything that a new receiver would fetch, the anchor first."""
    if isinstance(publication.handle, _Chain):
        yield publication.handle.anchor.version, publication.handle.anchor.size
        for link in publication.handle.links:
            yield link.version, link.changes.size


def _refuse(before: Manifest, name: str, dtype: str, shape: tuple[int, ...]) -> NoReturn:
    had = next((f"{each.dtype}{list(each.shape)}" for each in before.records if each.name == name), "nothing")
    raise SyncError(
        f"{KIND}: tensor {name!r} is {dtype}{list(shape)}, version {before.version} had {had}; the next "
        "publication brings all weights"
    )
