"""The transport that brings weights to a stage's engines, and its two ends. No torch, no Ray.

Runtimes choose with `chosen`; the trainer's process makes the sender, each replica's its receiver.
"""

from dataclasses import dataclass, field, replace

from roll_rollout.sync import (
    BroadcastReceiver,
    BroadcastSender,
    DeltaReceiver,
    DeltaSender,
    DirectoryReceiver,
    DirectorySender,
    InProcessReceiver,
    InProcessSender,
    ObjectStore,
    ObjectStoreReceiver,
    ObjectStoreSender,
    Receiver,
    Sender,
    SharedMemoryReceiver,
    SharedMemorySender,
)

from roll_launch.config import (
    AutoSyncConfig,
    BroadcastSyncConfig,
    DeltaConfig,
    DirectorySyncConfig,
    InProcessSyncConfig,
    ObjectStoreSyncConfig,
    SharedMemorySyncConfig,
    WeightSyncConfig,
)

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSpec:
    """How weights get from a trainer to its replicas.

    SyncSpec(config=SharedMemorySyncConfig(transport="shared_memory"), receivers=("actor-0",), deadline_s=600)

    Attributes:
        config: The transport; `auto` is replaced by `chosen`.
        overlapping: Engines may generate while the trainer trains.
        receivers: Names of the replicas.
        deadline_s: Seconds that one publication may take.
    """

    config: WeightSyncConfig = field(default_factory=AutoSyncConfig)
    overlapping: bool = False
    receivers: tuple[str, ...] = ()
    deadline_s: float = 600.0


def chosen(spec: SyncSpec, *, runtime: str, hosts: int) -> SyncSpec:
    """Returns the spec with a transport in the place of `auto`.

    Args:
        spec: As configured.
        runtime: "local" or "ray".
        hosts: That roles may be placed on.
    """
    if not isinstance(spec.config, AutoSyncConfig):
        return spec
    payload, config = spec.config.payload, spec.config
    made: WeightSyncConfig = config
    if runtime == "local":
        made = InProcessSyncConfig(transport="in_process", payload=payload)
    elif hosts == 1:
        made = SharedMemorySyncConfig(transport="shared_memory", payload=payload)
    else:
        made = ObjectStoreSyncConfig(transport="object_store", payload=payload)
    return replace(spec, config=made)


def make_sender(spec: SyncSpec, *, store: ObjectStore | None = None) -> Sender:
    """The trainer's end.

    Args:
        spec: With a transport; `auto` lends nothing and stays in this process.
        store: Of the runtime, if it has one.

    Raises:
        SyncError: The transport cannot be used here.
        ValueError: The transport needs a store, and the runtime has none.
    """
    match spec.config:
        case AutoSyncConfig():
            return InProcessSender(share=False)
        case InProcessSyncConfig(share=share):
            return InProcessSender(share=not spec.overlapping if share is None else share)
        case SharedMemorySyncConfig(share=share, delta=delta):
            if delta is not None:
                return _delta(SharedMemorySender(keep=None), delta)
            return SharedMemorySender(keep=2 if share else 1)
        case ObjectStoreSyncConfig(bucket_mb=bucket_mb, delta=delta):
            keep = 1 if delta is None else None
            sender = ObjectStoreSender(_needed(store), bucket_bytes=bucket_mb * MIB, keep=keep)
            return sender if delta is None else _delta(sender, delta)
        case DirectorySyncConfig(path=path, file_mb=file_mb, delta=delta):
            keep = 1 if delta is None else None
            files = DirectorySender(path, file_bytes=file_mb * MIB, keep=keep)
            return files if delta is None else _delta(files, delta)
        case BroadcastSyncConfig(backend=backend, address=address, bucket_mb=bucket_mb, join_s=join_s):
            return BroadcastSender(
                receivers=spec.receivers,
                backend=backend,
                address=address,
                bucket_bytes=bucket_mb * MIB,
                join_s=join_s,
                session_s=spec.deadline_s,
            )


def make_receiver(spec: SyncSpec, *, name: str, store: ObjectStore | None = None) -> Receiver:
    """A replica's end.

    Args:
        spec: As the sender's.
        name: Of the replica.
        store: Of the runtime, if it has one.

    Raises:
        ValueError: The transport needs a store, and the runtime has none.
    """
    match spec.config:
        case AutoSyncConfig() | InProcessSyncConfig():
            return InProcessReceiver()
        case SharedMemorySyncConfig(share=share, delta=delta):
            if delta is not None:
                return DeltaReceiver(SharedMemoryReceiver(share=False))
            return SharedMemoryReceiver(share=share)
        case ObjectStoreSyncConfig(delta=delta):
            receiver = ObjectStoreReceiver(_needed(store))
            return receiver if delta is None else DeltaReceiver(receiver)
        case DirectorySyncConfig(delta=delta):
            return DirectoryReceiver() if delta is None else DeltaReceiver(DirectoryReceiver())
        case BroadcastSyncConfig(backend=backend):
            return BroadcastReceiver(name, backend=backend)


def _delta(sender: Sender, config: DeltaConfig) -> Sender:
    return DeltaSender(sender, full_every=config.full_every, level=config.level)


def _needed(store: ObjectStore | None) -> ObjectStore:
    if store is None:
        raise ValueError("weight_sync.transport object_store needs the runtime `ray`")
    return store
