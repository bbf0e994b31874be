"""Checkpoints become visible whole, and the newest are kept."""

import json
from pathlib import Path

import pytest
from roll_launch.pipelines.checkpoints import MANIFEST, CheckpointError, commit, rotate


def test_a_committed_directory_has_a_manifest_with_the_size_of_every_file(tmp_path: Path) -> None:
    beside = tmp_path / "step_3.tmp"
    (beside / "inner").mkdir(parents=True)
    (beside / "model.safetensors").write_bytes(b"12345")
    (beside / "inner" / "state.pt").write_bytes(b"1")
    commit(beside, tmp_path / "step_3")
    assert not beside.exists()
    manifest = json.loads((tmp_path / "step_3" / MANIFEST).read_text())
    assert manifest["files"] == {"inner/state.pt": 1, "model.safetensors": 5}


def test_a_checkpoint_without_files_is_an_error_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.tmp").mkdir()
    with pytest.raises(CheckpointError, match="does not share this path"):
        commit(tmp_path / "model.tmp", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_newest_are_kept_by_number_not_by_text(tmp_path: Path) -> None:
    for step in (900, 1000, 9900, 10000):
        (tmp_path / f"step_{step}").mkdir()
    (tmp_path / "step_1.tmp").mkdir()
    rotate(tmp_path, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step_9900", "step_10000", "step_1.tmp"}
