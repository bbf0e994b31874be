"""What a weight sync costs as a share of one memory copy: processor time of both ends, in one process.

python benchmarks/weight_sync_share.py

Checksums at both ends are in it. A copied sync ends in tensors of the engine's own, as an engine that does
not share memory has it. The figures are in docs/weight_sync.md.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from roll_rollout.sync import (
    InProcessReceiver,
    InProcessSender,
    Receiver,
    Sender,
    SharedMemoryReceiver,
    SharedMemorySender,
)
from roll_rollout.weights import checked_checksum

TENSORS, MIB, ROUNDS = 30, 128, 5


def main() -> None:
    size = MIB * 2**20 // TENSORS // 4 * 4
    source = [np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8) for seed in range(TENSORS)]
    target = [np.zeros(size, np.uint8) for _ in source]

    def copy() -> None:
        for ours, theirs in zip(source, target, strict=True):
            np.copyto(theirs, ours)

    print(f"{'transport':<28}{'s':>8}{'of one copy':>14}")
    for name, share, sender, receiver in (
        ("in_process, share", True, InProcessSender(share=True), InProcessReceiver()),
        ("in_process, copied", False, InProcessSender(share=False), InProcessReceiver()),
        ("shared_memory, share", True, SharedMemorySender(keep=2), SharedMemoryReceiver(share=True)),
        ("shared_memory, copied", False, SharedMemorySender(keep=1), SharedMemoryReceiver(share=False)),
    ):
        taken = processor_time(synced(source, None if share else target, sender, receiver))
        one_copy = processor_time(copy)
        print(f"{name:<28}{taken:>8.3f}{one_copy / taken:>14.2f}")
        sender.close()


def synced(
    source: list[np.ndarray], target: list[np.ndarray] | None, sender: Sender, receiver: Receiver
) -> Callable[[], None]:
    """One sync of the next version at each call, into `target` unless the engine shares the memory."""
    version = 0

    def sync() -> None:
        nonlocal version
        version += 1
        tensors = [
            (f"layer.{index}", "float32", (each.size // 4,), each) for index, each in enumerate(source)
        ]
        published = sender.publish(tensors, version=version)
        arrived = receiver.fetch(published, deadline_s=30)
        if checked_checksum(arrived) != published.checksum:
            raise RuntimeError("what arrived is not what was published")
        if target is not None:
            for (_, _, _, theirs), ours in zip(arrived.tensors(), target, strict=True):
                np.copyto(ours, theirs)
        receiver.release(published)

    return sync


def processor_time(call: Callable[[], None]) -> float:
    """Median seconds, after two calls that take fresh pages."""
    for _ in range(2):
        call()
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
