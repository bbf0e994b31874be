"""Shared memory: one copy for all, no trace after any end, and no reader that does not notice a writer."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from roll_rollout import WeightMismatch
from roll_rollout.sync import Publication, SharedMemoryReceiver, SharedMemorySender, SyncError
from roll_rollout.weights import checked_checksum
from transports_of_tests import found, tensors, whole

PUBLISHER = """
import pickle, sys, time
import numpy as np
from roll_rollout.sync import SharedMemorySender
sender = SharedMemorySender(keep=2)
for version in range(int(sys.argv[1])):
    data = np.full(40_000_000, version + 1, np.uint8)
    published = sender.publish([("w", "uint8", (data.size,), data)], version=version)
pickle.dump(published, sys.stdout.buffer)
sys.stdout.buffer.flush()
time.sleep(600)
"""


def shared_kib() -> int:
    """Shared memory of the whole machine."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


def publish_elsewhere(versions: int) -> tuple[subprocess.Popen[bytes], Publication]:
    process = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(versions)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, pickle.load(process.stdout)


def test_another_process_is_read_without_a_copy_and_its_death_takes_nothing_from_readers() -> None:
    before, names = shared_kib(), set(os.listdir("/dev/shm"))
    process, published = publish_elsewhere(1)
    try:
        receiver = SharedMemoryReceiver(share=True)
        arrival = whole(receiver.fetch(published, deadline_s=5))
        assert arrival.lent
        assert checked_checksum(arrival) == published.checksum
        assert set(os.listdir("/dev/shm")) <= names
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # The reader still has it; nobody else can find it.
    assert checked_checksum(arrival) == published.checksum
    receiver.release(published)
    with pytest.raises(SyncError, match=r"version 0 at /proc/.* its process is gone"):
        SharedMemoryReceiver(share=False).fetch(published, deadline_s=5)
    receiver.close()
    del arrival
    # 40 MB would be 39,062 KiB; other processes of the machine may come and go meanwhile.
    assert shared_kib() - before < 30_000


def test_two_versions_stay_and_the_memory_of_the_third_is_the_firsts() -> None:
    sender, receiver = SharedMemorySender(keep=2), SharedMemoryReceiver(share=True)
    first = sender.publish(tensors(1), version=1)
    served = whole(receiver.fetch(first, deadline_s=1))
    second = sender.publish(tensors(2), version=2)
    assert checked_checksum(served) == first.checksum
    receiver.release(first)
    sender.publish(tensors(3), version=3)
    assert checked_checksum(whole(receiver.fetch(second, deadline_s=1))) == second.checksum
    with pytest.raises(SyncError, match=r"version 1 was overwritten .*by version 3"):
        receiver.fetch(first, deadline_s=1)
    sender.close()


def test_a_write_while_an_engine_loads_is_found_before_and_after() -> None:
    sender, receiver = SharedMemorySender(keep=1), SharedMemoryReceiver(share=False)
    first = sender.publish(tensors(1), version=1)
    arrival = whole(receiver.fetch(first, deadline_s=1))
    sender.publish(tensors(2), version=2)
    with pytest.raises(WeightMismatch, match="arrived with other bytes"):
        checked_checksum(arrival)
    with pytest.raises(SyncError, match="version 1 was overwritten before every engine had it, by version 2"):
        receiver.release(first)

    def watched():
        yield tensors(3)[0]
        with pytest.raises(SyncError, match="by one that is being written"):
            receiver.fetch(first, deadline_s=1)
        yield tensors(3)[1]

    sender.publish(watched(), version=3)
    sender.close()


def test_what_an_engine_does_to_lent_memory_reaches_nobody_else() -> None:
    sender = SharedMemorySender(keep=2)
    published = sender.publish(tensors(), version=1)
    one, other = (whole(SharedMemoryReceiver(share=True).fetch(published, deadline_s=1)) for _ in range(2))
    one.buckets[1].payload[:] = 0
    assert checked_checksum(other) == published.checksum
    sender.close()


def test_memory_grows_with_the_weights_and_is_used_again() -> None:
    sender, receiver = SharedMemorySender(keep=1), SharedMemoryReceiver(share=False)
    for version, large in enumerate((10, 6_000_000, 20)):
        sent = tensors(version, large=large)
        published = sender.publish(iter(sent), version=version)
        arrived = found(receiver.fetch(published, deadline_s=1))
        assert arrived == {name: (dtype, shape, data.tobytes()) for name, dtype, shape, data in sent}
    sender.close()


def test_a_publication_of_another_boot_names_the_transport_to_use() -> None:
    sender = SharedMemorySender()
    published = sender.publish(tensors(), version=1)
    elsewhere = replace(published, handle=replace(published.handle, boot="another"))  # type: ignore[type-var]
    with pytest.raises(SyncError, match="published on another host; use the transport 'object_store'"):
        SharedMemoryReceiver(share=False).fetch(elsewhere, deadline_s=1)
    sender.close()


def test_a_retired_version_is_gone_and_its_file_is_closed() -> None:
    files = len(os.listdir("/proc/self/fd"))
    sender = SharedMemorySender(keep=None)
    published = [sender.publish(tensors(version), version=version) for version in range(3)]
    sender.retire(1)
    receiver = SharedMemoryReceiver(share=False)
    for each in (published[0], published[2]):
        assert checked_checksum(whole(receiver.fetch(each, deadline_s=1))) == each.checksum
    with pytest.raises(SyncError, match="version 1"):
        SharedMemoryReceiver(share=False).fetch(published[1], deadline_s=1)
    receiver.close()
    sender.close()
    assert len(os.listdir("/proc/self/fd")) == files


def test_payloads_of_any_alignment_arrive() -> None:
    sender = SharedMemorySender()
    odd = np.arange(33, dtype=np.uint8)[1:]
    published = sender.publish([("w", "float64", (4,), odd)], version=1)
    ((_, _, _, payload),) = whole(SharedMemoryReceiver(share=True).fetch(published, deadline_s=1)).tensors()
    assert payload.tobytes() == odd.tobytes()
    assert payload.ctypes.data % 64 == 0
    sender.close()
