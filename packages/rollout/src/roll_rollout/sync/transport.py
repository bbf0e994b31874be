"""The seam between a learner and the engines that get its weights: who publishes, who fetches, what crosses.

A learner's process owns a `Sender`, an engine's process a `Receiver`. What passes between them outside of the
transport, through whatever control plane there is, is a small `Publication`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from roll_rollout.adapter import AdapterConfig, AdapterUpdate
from roll_rollout.capabilities import AdapterEngine
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError, UnsupportedRequest, WeightMismatch
from roll_rollout.weight_digest import digests_of
from roll_rollout.weights import TensorBytes, WeightReceipt, WeightUpdate

Arrival: TypeAlias = WeightUpdate | AdapterUpdate
"""What a receiver hands to its engine."""


class SyncError(EngineError):
    """A transport could not bring weights: a deadline, a member that is gone, a publication that is no more.

    The engine has the weights it had before.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHeader:
    """Says that the tensors are a LoRA adapter: AdapterHeader(name="policy", config=AdapterConfig(...))."""

    name: str
    config: AdapterConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Publication:
    """Weights that are ready to be fetched, for example

        Publication(version=4, checksum="xxh3-128:9f..", size=538060, transport="shared_memory", handle=...)

    Attributes:
        version: Policy version.
        checksum: Of the bytes, as `weights_checksum` computes it.
        size: Bytes of all tensors.
        transport: Kind of the receiver that can fetch it.
        handle: What that receiver needs; it can be pickled wherever the transport leaves the process.
    """

    version: int
    checksum: str
    size: int
    transport: str
    handle: object


class Sender(Protocol):
    """The learner's side. Methods block; they are called from one thread at a time."""

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Makes weights available to every receiver; returns when the tensors may change again, except where
        a transport lends them.

        Args:
            tensors: Taken one at a time, and let go of as soon as the transport can.
            version: Policy version.
            adapter: Where the tensors are not the weights but a LoRA adapter on top of them.

        Raises:
            SyncError: The transport failed; nothing was published.
            WeightMismatch: A tensor's bytes do not match its dtype and shape, or two have one name.
        """
        ...

    def retire(self, version: int) -> None:
        """Frees what a version occupies, once nobody fetches it any more. Unknown versions are ignored."""
        ...

    def close(self) -> None:
        """Frees everything. May be called again."""
        ...


class Receiver(Protocol):
    """An engine's side. Methods block; they are called from one thread at a time."""

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns published weights, for one engine to load.

        Args:
            publication: As its sender returned it.
            deadline_s: Seconds that it may take.

        Raises:
            SyncError: They cannot be had, or not in time; says why.
            WeightMismatch: What arrived is not what was published.
        """
        ...

    def release(self, publication: Publication) -> None:
        """Says that the engine has loaded what `fetch` returned.

        Raises:
            SyncError: The bytes were overwritten while the engine loaded them: it holds a mixture.
        """
        ...

    def close(self) -> None:
        """Frees everything. May be called again."""
        ...


def check_publication(publication: Publication, transport: str) -> None:
    """Returns if a receiver can fetch a publication.

    Raises:
        SyncError: It was published through another transport.
    """
    if publication.transport != transport:
        got = f"version {publication.version} was published through {publication.transport!r}"
        raise SyncError(f"{got}, and this receiver fetches from {transport!r}")


def check_arrival(arrival: AdapterUpdate, expected: dict[str, bytes], algorithm: str) -> None:
    """Returns if the bytes of an adapter are those that were published.

    Raises:
        WeightMismatch: Names a tensor of which they are not.
    """
    tensors = (tensor for bucket in arrival.buckets for tensor in bucket.tensors())
    for name, digest in digests_of(tensors, algorithm).items():
        if expected.get(name) != digest:
            where = f"adapter {arrival.name!r}, version {arrival.version}"
            raise WeightMismatch(f"{where}: tensor {name!r} arrived with other bytes than were published")


async def load_arrival(engine: Engine, arrival: Arrival) -> WeightReceipt:
    """Returns the receipt of an engine for what a receiver fetched.

    Raises:
        UnsupportedRequest: It is an adapter, and the engine takes none.
        WeightMismatch: It does not fit the engine's model, which is unchanged.
    """
    if isinstance(arrival, WeightUpdate):
        return await engine.update_weights(arrival)
    if not isinstance(engine, AdapterEngine):
        raise UnsupportedRequest(f"adapter {arrival.name!r}: {type(engine).__name__} takes no adapters")
    return await engine.load_adapter(arrival)
