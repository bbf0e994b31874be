"""Changes alone are sent, whoever lacks their base begins with everything, and damage changes nothing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_rollout import WeightMismatch
from roll_rollout.sync import DeltaReceiver, DeltaSender, ObjectStoreReceiver, ObjectStoreSender, SyncError
from roll_rollout.sync.changes import Codec, apply_changes, changes_between
from roll_rollout.sync.delta import sent_bytes
from roll_rollout.weights import TensorBytes, checked_checksum
from transports_of_tests import Shelf, make_transport, whole

N = 40_000


def weights(version: int, *, share: float = 0.01) -> list[TensorBytes]:
    """bfloat16 weights of which a share changes from version to version."""
    data = np.random.default_rng(0).integers(0, 1 << 16, N).astype(np.uint16)
    for each in range(version):
        rng = np.random.default_rng(each + 1)
        data[rng.random(N) < share] ^= 3
    return [("w", "bfloat16", (N,), data.view(np.uint8)), ("b", "float32", (1,), np.zeros(4, np.uint8))]


def pair(**options) -> tuple[DeltaSender, list[DeltaReceiver], Shelf]:
    shelf = Shelf()
    sender = DeltaSender(ObjectStoreSender(shelf, keep=None), **options)
    return sender, [DeltaReceiver(ObjectStoreReceiver(shelf)) for _ in range(3)], shelf


def test_a_step_that_changes_one_percent_sends_a_small_part() -> None:
    sender, (receiver, *_), _ = pair()
    for version in range(3):
        published = sender.publish(weights(version), version=version)
        arrival = whole(receiver.fetch(published, deadline_s=1))
        assert checked_checksum(arrival) == published.checksum
    (_, anchor), *links = sent_bytes(published)
    assert anchor >= 2 * N
    assert [version for version, _ in links] == [1, 2]
    assert all(size < 0.08 * anchor for _, size in links)


def test_a_newcomer_begins_with_everything_and_one_that_missed_versions_catches_up() -> None:
    sender, (always, sometimes, late), shelf = pair(full_every=4)
    for version in range(11):
        published = sender.publish(weights(version), version=version)
        for receiver in (
            always,
            *([sometimes] if version % 3 == 0 else []),
            *([late] if version > 8 else []),
        ):
            arrival = whole(receiver.fetch(published, deadline_s=1))
            assert (arrival.version, checked_checksum(arrival)) == (version, published.checksum)
    assert len(list(sent_bytes(published))) == 3
    # Fetching the same version again takes nothing from the store.
    shelf.spoil = lambda found: []
    assert checked_checksum(whole(always.fetch(published, deadline_s=1))) == published.checksum


def test_weights_that_change_everywhere_are_sent_whole() -> None:
    sender, (receiver, *_), _ = pair()
    for version in range(3):
        data = np.random.default_rng(version).integers(0, 256, 4 * N, dtype=np.uint8)
        published = sender.publish([("w", "float32", (N,), data)], version=version)
        assert len(list(sent_bytes(published))) == 1
        assert checked_checksum(whole(receiver.fetch(published, deadline_s=1))) == published.checksum


def test_damaged_changes_are_refused_and_the_receiver_recovers() -> None:
    sender, (receiver, *_), shelf = pair()
    receiver.fetch(sender.publish(weights(0), version=0), deadline_s=1)
    published = sender.publish(weights(1), version=1)

    def flipped(found: list[np.ndarray]) -> list[np.ndarray]:
        spoilt = found[0].copy()
        spoilt[40] ^= 1
        return [spoilt]

    shelf.spoil = flipped
    with pytest.raises(WeightMismatch, match="arrived with other bytes"):
        receiver.fetch(published, deadline_s=1)
    shelf.spoil = lambda found: found
    assert checked_checksum(whole(receiver.fetch(published, deadline_s=1))) == published.checksum


def test_a_learner_whose_tensors_change_shape_says_so_once_and_then_sends_all() -> None:
    sender, (receiver, *_), _ = pair()
    sender.publish(weights(0), version=0)
    other = [("w", "float32", (2,), np.zeros(8, np.uint8))]
    with pytest.raises(SyncError, match=r"'w' is float32\[2\], version 0 had bfloat16\[40000\]"):
        sender.publish(other, version=1)
    published = sender.publish(other, version=1)
    assert checked_checksum(whole(receiver.fetch(published, deadline_s=1))) == published.checksum
    with pytest.raises(SyncError, match="'w' of version 1 is not in 2"):
        sender.publish([], version=2)


def test_memory_of_old_versions_is_given_back(tmp_path: Path) -> None:
    made = make_transport("delta over directory", tmp_path)
    for version in range(9):
        made.sender.publish(weights(version), version=version)
    folders = sorted(each.name for each in (tmp_path / "weights").iterdir())
    assert folders == ["version-000008"]
    made.sender.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    old=st.binary(min_size=0, max_size=64).map(lambda data: data[: len(data) // 8 * 8]),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from(["int8", "bfloat16", "float32", "float64"]),
    level=st.sampled_from([0, 1]),
)
def test_changes_make_the_new_bytes_of_the_old(old: bytes, seed: int, dtype: str, level: int) -> None:
    before = np.frombuffer(old, np.uint8)
    rng = np.random.default_rng(seed)
    after = np.where(rng.random(before.size) < 0.3, rng.integers(0, 256, before.size), before).astype(
        np.uint8
    )
    changes = changes_between(before, after, dtype=dtype, codec=Codec.best(level))
    target = before.copy()
    apply_changes(changes, target, name="w")
    assert target.tobytes() == after.tobytes()


@pytest.mark.parametrize("library", ["zlib", "zstd", "none"])
def test_every_codec_is_read_back(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "zstd":
        pytest.importorskip("zstandard", reason="the extra `zstd` is not installed")
    if library == "zlib":
        monkeypatch.setattr("roll_rollout.sync.changes._ZSTD", ())
    codec = Codec.best(0 if library == "none" else 3)
    assert codec.name == library
    old, new = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
    new[::7] = 9
    changes = changes_between(old, new, dtype="float32", codec=codec)
    apply_changes(changes, old, name="w")
    assert np.array_equal(old, new)


def test_changes_of_another_tensor_and_cut_off_ones_are_refused() -> None:
    changes = changes_between(
        np.zeros(64, np.uint8), np.ones(64, np.uint8), dtype="int8", codec=Codec.best(1)
    )
    with pytest.raises(WeightMismatch, match="'w': changes of 64 bytes for 32"):
        apply_changes(changes, np.zeros(32, np.uint8), name="w")
    with pytest.raises(WeightMismatch, match="changes of tensor 'w' are damaged"):
        apply_changes(changes[:-3], np.zeros(64, np.uint8), name="w")


@pytest.mark.parametrize(
    ("options", "message"), [({"level": 10}, "level is 10"), ({"full_every": 0}, "is 0")]
)
def test_options_out_of_range_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(SyncError, match=message):
        pair(**options)
