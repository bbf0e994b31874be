"""A private cluster is started again where Ray's own limits were too short for a busy machine."""

import tempfile
from pathlib import Path

import pytest
import ray
from roll_launch.ray.cluster import STARTS, Cluster, ClusterError

BUSY = "The current node timed out during startup. This could happen because the GCS has become overloaded."


def _fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *errors: str) -> list[str]:
    """Each start of Ray raises the next of these; what is left after them is a start that works."""
    scratch: list[str] = []
    left = list(errors)

    def start(**options: object) -> None:
        scratch.append(str(options["_temp_dir"]))
        if left:
            raise RuntimeError(left.pop(0))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    return scratch


def _cluster() -> Cluster:
    return Cluster(address=None, needs={"CPU": 1.0}, worker_environment={})


def test_a_start_that_was_too_slow_is_tried_again_in_a_directory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scratch = _fails(monkeypatch, tmp_path, BUSY)
    _cluster().close()
    assert len(set(scratch)) == 2
    assert not any(Path(directory).exists() for directory in scratch)


def test_starts_that_are_always_too_slow_end_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scratch = _fails(monkeypatch, tmp_path, *[BUSY] * 9)
    with pytest.raises(ClusterError, match="timed out during startup"):
        _cluster()
    assert len(scratch) == STARTS


def test_another_failure_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scratch = _fails(monkeypatch, tmp_path, "no space left")
    with pytest.raises(ClusterError, match="no space left"):
        _cluster()
    assert len(scratch) == 1
