"""Weights for engines in the learner's own process: lent by reference, or one copy."""

from collections.abc import Iterable

from roll_rollout.sync.manifest import Manifest, TensorRecord
from roll_rollout.sync.packing import check_tensor
from roll_rollout.sync.transport import AdapterHeader, Arrival, Publication, SyncError, check_publication
from roll_rollout.weight_digest import Digester
from roll_rollout.weights import TensorBytes

KIND = "in_process"


class InProcessSender:
    """Publishes the learner's own tensors; nothing is copied here.

    They are what the engines read from, so that they must not change before every engine has its receipt.
    Keep each payload's memory alive for as long: views of live tensors do, views of temporary ones too.

    Args:
        share: Engines may go on with the learner's tensors as theirs. Only for those that draw no token while
            the learner updates; otherwise each copies them once.
    """

    def __init__(self, *, share: bool) -> None:
        self._share = share

    def publish(
        self, tensors: Iterable[TensorBytes], *, version: int, adapter: AdapterHeader | None = None
    ) -> Publication:
        """Hashes the tensors where they are. See `Sender.publish`."""
        records: dict[str, TensorRecord] = {}
        payloads = []
        with Digester() as digester:
            for name, dtype, shape, payload in tensors:
                check_tensor(name, dtype, shape, payload, records)
                digest = digester.digest(name, dtype, shape, payload)
                records[name] = TensorRecord(name=name, dtype=dtype, shape=shape, start=0, digest=digest)
                payloads.append(payload)
        manifest = Manifest(
            version=version, algorithm=digester.algorithm, records=tuple(records.values()), adapter=adapter
        )
        return Publication(
            version=version,
            checksum=manifest.checksum,
            size=manifest.size,
            transport=KIND,
            handle=manifest.arrival_of(payloads, lent=self._share),
        )

    def retire(self, version: int) -> None:
        """Holds nothing of its own. See `Sender.retire`."""

    def close(self) -> None:
        """Holds nothing of its own. See `Sender.close`."""


class InProcessReceiver:
    """Takes what the sender holds."""

    def fetch(self, publication: Publication, *, deadline_s: float) -> Arrival:
        """Returns the update itself. See `Receiver.fetch`."""
        check_publication(publication, KIND)
        if not isinstance(publication.handle, Arrival):
            raise SyncError(f"{KIND}: the publication holds {type(publication.handle).__name__}")
        return publication.handle

    def release(self, publication: Publication) -> None:
        """Holds nothing of its own. See `Receiver.release`."""

    def close(self) -> None:
        """Holds nothing of its own. See `Receiver.close`."""
