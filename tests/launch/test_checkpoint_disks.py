"""Real disks that are full, that turn read-only, and files that may not grow."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from roll_launch.checkpoint_store import CheckpointError, commit, discard, newest, prepare, rotate, set_aside


def save(root: Path, step: int, content: str) -> None:
    beside = prepare(root / f"step_{step}")
    try:
        (beside / "model").write_bytes(content.encode())
    except OSError as error:
        discard(beside)
        raise CheckpointError("the trainer could not write") from error
    commit(beside, root / f"step_{step}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "checkpoints", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user may not mount a tmpfs: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_bsize


def test_a_disk_that_the_trainer_fills_gets_its_space_back(small_disk: Path) -> None:
    save(small_disk, 10, "first" * 1000)
    free = free_bytes(small_disk)
    with pytest.raises(CheckpointError) as raised:
        save(small_disk, 20, "second" * 50_000)
    assert "No space left" in str(raised.value.__cause__)
    assert newest(small_disk) == small_disk / "step_10"
    assert free_bytes(small_disk) == free


def test_a_disk_without_room_for_the_manifest_is_an_error_that_says_so(small_disk: Path) -> None:
    save(small_disk, 10, "first")
    free = free_bytes(small_disk)
    beside = prepare(small_disk / "step_20")
    (beside / "model").write_bytes(b"second")
    with (small_disk / "of another program").open("wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(CheckpointError, match=r"step_20 was not written: \[Errno 28\] No space left"):
        commit(beside, small_disk / "step_20")
    assert newest(small_disk) == small_disk / "step_10"
    (small_disk / "of another program").unlink()
    assert free_bytes(small_disk) == free


def test_a_disk_that_turns_read_only_still_gives_the_newest(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20):
        save(small_disk, step, "first")
    beside = prepare(small_disk / "step_30")
    (beside / "model").write_bytes(b"second")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in (prepare, lambda target: commit(beside, target)):
        with pytest.raises(CheckpointError, match=r"step_30 .*Read-only file system: '"):
            write(small_disk / "step_30")
    with pytest.raises(CheckpointError, match=r"set aside: .*Read-only"):
        set_aside(small_disk, after=10)
    assert rotate(small_disk, keep=1) == []
    assert "step_10 was not removed: [Errno 30] Read-only" in caplog.text
    assert newest(small_disk) == small_disk / "step_20"


def test_a_limit_on_the_size_of_files_is_an_error_that_says_so(tmp_path: Path) -> None:
    save(tmp_path, 10, "first")
    beside = prepare(tmp_path / "step_20")
    (beside / "model").write_bytes(b"second")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(CheckpointError, match=r"step_20 was not written: .*File too large"):
            commit(beside, tmp_path / "step_20")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest(tmp_path) == tmp_path / "step_10"
    assert not beside.exists()
