"""Buckets: cut from any stream of tensors with bounded memory, and joined only if all are there, in order."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_rollout import WeightMismatch
from roll_rollout.sync import ObjectStoreReceiver, ObjectStoreSender, SyncError
from roll_rollout.sync.object_store import Buckets, joined
from roll_rollout.weights import TensorBytes, checked_checksum
from transports_of_tests import Shelf, found, tensors, whole

Buffers = list[np.ndarray]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 300), max_size=12),
    bucket_bytes=st.integers(1, 400),
)
def test_any_cut_is_joined_to_the_same_tensors(sizes: Sequence[int], bucket_bytes: int) -> None:
    rng = np.random.default_rng(0)
    sent = [
        (f"t{index}", "uint8", (size,), rng.integers(0, 256, size, dtype=np.uint8))
        for index, size in enumerate(sizes)
    ]
    buckets = Buckets(sent, bucket_bytes=bucket_bytes, version=1)
    taken = [bucket.copy() for bucket in buckets]
    assert all(bucket.size == bucket_bytes for bucket in taken[:-1])
    arrival = joined(buckets.manifest, taken, bucket_bytes)
    assert found(arrival) == {name: (dtype, shape, data.tobytes()) for name, dtype, shape, data in sent}


def test_a_learner_that_gathers_tensor_by_tensor_never_holds_two() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def gathered() -> Iterator[TensorBytes]:
        for index in range(20):
            gc.collect()
            assert sum(each() is not None for each in alive) <= 1
            data = np.full(1000, index, np.uint8)
            alive.append(weakref.ref(data))
            yield f"t{index}", "uint8", (1000,), data
            del data

    buckets = Buckets(gathered(), bucket_bytes=300, version=1)
    memory = {bucket.ctypes.data for bucket in buckets}
    assert len(memory) == 1
    assert len(buckets.manifest.records) == 20


def _flipped(buffers: Buffers) -> Buffers:
    spoilt = buffers[1].copy()
    spoilt[100] ^= 1
    return [buffers[0], spoilt, *buffers[2:]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda found: found[:-1], r"5 buckets arrived of 6"),
        (lambda found: [*found, found[0]], r"7 buckets arrived of 6"),
        (lambda found: [found[1], found[0], *found[2:]], r"tensor '.*' arrived with other bytes"),
        (lambda found: [found[0], found[0], *found[2:]], r"tensor 'embed\.weight' arrived with other bytes"),
        (lambda found: [*found[:-1], found[-1][:-1]], r"bucket 5 of 6 has \d+ bytes, not \d+"),
        (_flipped, r"tensor 'embed\.weight' arrived with other bytes"),
    ],
    ids=["dropped", "doubled", "reordered", "replaced", "cut off", "flipped byte"],
)
def test_what_happens_to_buckets_on_the_way_is_named(
    spoil: Callable[[Buffers], Buffers], message: str
) -> None:
    shelf = Shelf()
    sender, receiver = ObjectStoreSender(shelf, bucket_bytes=4096), ObjectStoreReceiver(shelf)
    published = sender.publish(tensors(), version=4)
    shelf.spoil = spoil
    with pytest.raises(WeightMismatch, match=message):
        checked_checksum(whole(receiver.fetch(published, deadline_s=1)))


def test_a_store_that_does_not_answer_ends_at_the_deadline() -> None:
    class Silent(Shelf):
        def get(self, references: Sequence[object], *, deadline_s: float) -> Buffers:
            raise TimeoutError

    shelf = Silent()
    published = ObjectStoreSender(shelf).publish(tensors(), version=4)
    with pytest.raises(SyncError, match=r"version 4: its 1 buckets did not come within 3 s"):
        ObjectStoreReceiver(shelf).fetch(published, deadline_s=3)


def test_a_bucket_of_no_bytes_is_refused() -> None:
    with pytest.raises(WeightMismatch, match="bucket_bytes: got 0"):
        ObjectStoreSender(Shelf(), bucket_bytes=0).publish(tensors(), version=1)
