"""A directory of versions: complete or not there, and readable by others than this package."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from roll_rollout import AdapterConfig, WeightMismatch
from roll_rollout.sync import AdapterHeader, DirectoryReceiver, DirectorySender, SyncError
from roll_rollout.weights import checked_checksum
from safetensors import safe_open
from transports_of_tests import tensors, whole

KILLED = """
import sys
from pathlib import Path
import numpy as np
from roll_rollout.sync import DirectorySender
def endless():
    for index in range(1_000_000):
        yield f"t{index}", "uint8", (5000,), np.zeros(5000, np.uint8)
        if index == 100:
            print("half-way", flush=True)
            sys.stdin.readline()
DirectorySender(Path(sys.argv[1]), file_bytes=20_000).publish(endless(), version=1)
"""


def test_a_sender_killed_while_it_writes_leaves_no_version_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [each.name[:9] for each in tmp_path.iterdir()] == [".partial-"]
    published = DirectorySender(tmp_path).publish(tensors(), version=1)
    assert [each.name for each in tmp_path.iterdir()] == ["version-000001"]
    assert checked_checksum(whole(DirectoryReceiver().fetch(published, deadline_s=1))) == published.checksum


def test_files_are_what_others_read(tmp_path: Path) -> None:
    DirectorySender(tmp_path, file_bytes=4096).publish(tensors(), version=1)
    folder = tmp_path / "version-000001"
    read = {name for file in folder.glob("*.safetensors") for name in safe_open(file, "np").keys()}  # noqa: SIM118
    assert read == {name for name, *_ in tensors()}
    assert (folder / "model.safetensors.index.json").is_file()
    config = AdapterConfig(rank=1, alpha=1.0, target_modules=("q_proj",))
    pair = [(f"m.q_proj.lora_{side}.weight", *tensors()[0][1:]) for side in "AB"]
    header = AdapterHeader(name="policy", config=config)
    DirectorySender(tmp_path).publish(pair, version=2, adapter=header)
    files = {each.name for each in (tmp_path / "version-000002").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}


def test_old_versions_go_and_a_version_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    DirectorySender(tmp_path, keep=None).publish(tensors(9), version=2)
    sender = DirectorySender(tmp_path, keep=2)
    published = [sender.publish(tensors(version), version=version) for version in (1, 2, 3)]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["version-000002", "version-000003"]
    with pytest.raises(SyncError, match=r"version 1 at .* cannot be read"):
        DirectoryReceiver().fetch(published[0], deadline_s=1)
    arrival = whole(DirectoryReceiver().fetch(published[1], deadline_s=1))
    assert checked_checksum(arrival) == published[1].checksum
    sender.close()
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named(tmp_path: Path) -> None:
    published = DirectorySender(tmp_path).publish(tensors(), version=1)
    file = tmp_path / "version-000001" / "model-00001.safetensors"
    whole_file = file.read_bytes()
    file.write_bytes(whole_file[:-20] + b"x" + whole_file[-19:])
    with pytest.raises(WeightMismatch, match=r"tensor 'head\.weight' arrived with other bytes"):
        checked_checksum(whole(DirectoryReceiver().fetch(published, deadline_s=1)))
    file.write_bytes(whole_file[:-20])
    with pytest.raises(SyncError, match=r"ends before tensor 'head\.weight' does"):
        DirectoryReceiver().fetch(published, deadline_s=1)
    (file.parent / "manifest.json").write_text("{}")
    with pytest.raises(SyncError, match="cannot be read"):
        DirectoryReceiver().fetch(published, deadline_s=1)


def test_another_publication_in_its_place_is_refused(tmp_path: Path) -> None:
    published = DirectorySender(tmp_path).publish(tensors(), version=1)
    DirectorySender(tmp_path).publish(tensors(5), version=1)
    with pytest.raises(SyncError, match="another publication is there"):
        DirectoryReceiver().fetch(published, deadline_s=1)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SyncError, match="file/weights cannot be made"):
        DirectorySender(tmp_path / "file" / "weights")
