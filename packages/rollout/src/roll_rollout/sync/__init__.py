"""Transports of weights: from a learner's process into the processes of engines."""

from roll_rollout.sync.in_process import InProcessReceiver, InProcessSender
from roll_rollout.sync.manifest import Manifest, TensorRecord
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
    "InProcessReceiver",
    "InProcessSender",
    "Manifest",
    "Publication",
    "Receiver",
    "Sender",
    "SharedMemoryReceiver",
    "SharedMemorySender",
    "SyncError",
    "TensorRecord",
    "load_arrival",
]
