"""Transports of weights: from a learner's process into the processes of engines."""

from roll_rollout.sync.broadcast import BroadcastReceiver, BroadcastSender
from roll_rollout.sync.delta import DeltaReceiver, DeltaSender, sent_bytes
from roll_rollout.sync.directory import DirectoryReceiver, DirectorySender
from roll_rollout.sync.in_process import InProcessReceiver, InProcessSender
from roll_rollout.sync.manifest import Manifest, TensorRecord
from roll_rollout.sync.object_store import ObjectStore, ObjectStoreReceiver, ObjectStoreSender
from roll_rollout.sync.shared_memory import SharedMemoryReceiver, SharedMemorySender
from roll_rollout.sync.transport import (
    AdapterHeader,
    Arrival,
    Publication,
    Receiver,
    Sender,
    SyncError,
    load_arrival,
)

__all__ = [
    "AdapterHeader",
    "Arrival",
    "BroadcastReceiver",
    "BroadcastSender",
    "DeltaReceiver",
    "DeltaSender",
    "DirectoryReceiver",
    "DirectorySender",
    "InProcessReceiver",
    "InProcessSender",
    "Manifest",
    "ObjectStore",
    "ObjectStoreReceiver",
    "ObjectStoreSender",
    "Publication",
    "Receiver",
    "Sender",
    "SharedMemoryReceiver",
    "SharedMemorySender",
    "SyncError",
    "TensorRecord",
    "load_arrival",
    "sent_bytes",
]
