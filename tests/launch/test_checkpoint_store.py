"""Checkpoints on disk: visible when whole, every damage named, the newest found, the oldest removed."""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from roll_launch.checkpoint_store import (
    MANIFEST,
    CheckpointError,
    commit,
    newest,
    prepare,
    rotate,
    set_aside,
    verify,
)
from safetensors.numpy import save_file

FILES = {"model.safetensors": b"m" * 5000, "config.json": b"{}", "state/rank_0.pt": b"0123456789"}
INDEX = "model.safetensors.index.json"


def save(root: Path, name: str | int, files: dict[str, bytes] = FILES) -> Path:
    target = root / (name if isinstance(name, str) else f"step_{name}")
    beside = prepare(target)
    for file, content in files.items():
        (beside / file).parent.mkdir(exist_ok=True)
        (beside / file).write_bytes(content)
    commit(beside, target)
    return target


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_committed_directory_has_a_manifest_with_size_and_digest_of_every_file(tmp_path: Path) -> None:
    target = save(tmp_path, 3)
    assert names(tmp_path) == {"step_3"}
    assert json.loads((target / MANIFEST).read_bytes())["files"] == {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    }
    verify(target)


def test_a_checkpoint_without_files_is_an_error_not_a_checkpoint(tmp_path: Path) -> None:
    beside = prepare(tmp_path / "model")
    with pytest.raises(CheckpointError, match="does not share this path"):
        commit(beside, tmp_path / "model")
    with pytest.raises(CheckpointError, match="does not share this path"):
        commit(tmp_path / "never made.tmp", tmp_path / "model")
    assert names(tmp_path) == set()


def test_everything_is_on_disk_before_the_name_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1]
    )
    monkeypatch.setattr(os, "rename", lambda *a, **k: (done.append("rename"), rename(*a, **k))[1])
    save(tmp_path / "run" / "checkpoints", 1)
    root = tmp_path / "run" / "checkpoints"
    beside = root / "step_1.tmp"
    written = done[2:-2]
    assert done[:2] == [str(tmp_path / "run"), str(tmp_path)], "each new directory's name is on disk too"
    assert set(written) == {str(beside / name) for name in (*FILES, MANIFEST, "state")} | {str(beside)}
    assert written.index(str(beside / MANIFEST)) > max(written.index(str(beside / name)) for name in FILES)
    assert done[-2:] == ["rename", str(root)]


def test_a_checkpoint_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1, {"old": b"old", "both": b"old"})
    target = save(tmp_path, 1, {"both": b"new"})
    verify(target)
    assert names(target) == {"both", MANIFEST} and (target / "both").read_bytes() == b"new"
    assert names(tmp_path) == {"step_1"}


def test_the_earlier_attempt_has_its_name_again_if_the_next_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, {"model": b"old"})
    rename = os.rename

    def refuses(source: Path, target: Path, **options: int) -> None:
        if source.name == "step_1.tmp":
            raise OSError(5, "Input/output error", str(source))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", refuses)
    with pytest.raises(
        CheckpointError, match=r"step_1 was not written: .*Input/output error: '.*step_1\.tmp'"
    ):
        save(tmp_path, 1, {"model": b"new"})
    assert names(tmp_path) == {"step_1"} and (tmp_path / "step_1" / "model").read_bytes() == b"old"


def test_what_killed_writes_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in ("step_2.tmp", "step_1.old", "step_0.removed", "mine.tmp", "step_1.broken", "step_7.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"half")
    assert list(prepare(tmp_path / "step_3").iterdir()) == []
    assert names(tmp_path) == {"step_1", "step_3.tmp", "mine.tmp", "step_1.broken", "step_7"}
    assert (tmp_path / "step_7" / "weights").read_bytes() == b"half", "the one to take its place never came"


def test_the_leftovers_of_a_model_are_cleared_without_its_neighbours(tmp_path: Path) -> None:
    for name in ("model.tmp", "model.old", "checkpoints.tmp"):
        (tmp_path / name).mkdir()
    save(tmp_path, "model")
    assert names(tmp_path) == {"model", "checkpoints.tmp"}


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("length", [0, 1, "half", "one less", "one more"])
def test_a_file_of_another_length_is_named(tmp_path: Path, name: str, length: int | str) -> None:
    path = save(tmp_path, 1) / name
    content = path.read_bytes()
    lengths: dict[int | str, int] = {"half": len(content) // 2, "one less": len(content) - 1}
    path.write_bytes(content + b"x" if length == "one more" else content[: lengths.get(length, length)])
    with pytest.raises(CheckpointError, match=f"{path}.*expected"):
        verify(path.parents[name.count("/")])


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    target = save(tmp_path, 1)
    for at in {0, len(FILES[name]) // 2, len(FILES[name]) - 1}:
        flip(target / name, at)
        with pytest.raises(CheckpointError, match=rf"{name} has the sha256 \w+; expected is \w+"):
            verify(target)
        flip(target / name, at)
    verify(target)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_removed_file_is_named(tmp_path: Path, name: str) -> None:
    target = save(tmp_path, 1)
    (target / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing; expected"):
        verify(target)


def test_a_manifest_cut_at_any_byte_or_with_any_bit_flipped_is_never_half_believed(tmp_path: Path) -> None:
    target = save(tmp_path, 1)
    manifest = target / MANIFEST
    whole = manifest.read_bytes()
    for length in range(len(whole)):
        manifest.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="not JSON"):
            verify(target)
    believed = 0
    for at in range(len(whole)):
        manifest.write_bytes(whole)
        flip(manifest, at)
        try:
            verify(target)
        except CheckpointError:
            continue
        believed += 1
        assert json.loads(manifest.read_bytes()) == json.loads(whole)
    assert believed < len(whole) / 10


@pytest.mark.parametrize(
    "content",
    ["[]", "null", "{}", '{"files": []}', '{"files": {}}', '{"files": {"a": 5}}', '{"files": {"a": null}}',
     '{"files": {"a": {"size": "5", "sha256": ""}}}', '{"files": {"a": {"size": true, "sha256": ""}}}',
     '{"files": {"a": {"size": 5.0, "sha256": ""}}}', '{"files": {"a": {"size": 5}}}',
     '{"files": {"a": {"size": 5, "sha256": 7}}}', "", "\xff", "[" * 100_000, "9" * 5000],
    ids=lambda content: content[:40] or "empty",
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused_by_name(tmp_path: Path, content: str) -> None:
    target = save(tmp_path, 1)
    (target / MANIFEST).write_bytes(content.encode("latin1"))
    with pytest.raises(CheckpointError, match=rf"{target / MANIFEST} .*expected is .*object"):
        verify(target)


@pytest.mark.parametrize("name", ["", "state", "\0", "\ud800", "a" * 300])
def test_a_manifest_with_a_name_that_no_file_has_is_refused(tmp_path: Path, name: str) -> None:
    target = save(tmp_path, 1)
    (target / MANIFEST).write_text(json.dumps({"files": {name: {"size": 5, "sha256": ""}}}))
    with pytest.raises(CheckpointError, match=r"is missing|cannot be read"):
        verify(target)


def test_what_is_no_directory_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step_1").write_text("a file")
    for name in ("step_1", "step_2"):
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
            verify(tmp_path / name)
    target = save(tmp_path, 3)
    (target / "config.json").unlink()
    (target / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        verify(target)


def sharded(directory: Path, weight_map: object, shards: dict[str, list[str]]) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for shard, tensors in shards.items():
        save_file({name: np.zeros(2, np.float32) for name in tensors}, directory / shard)


@pytest.mark.parametrize(
    ("weight_map", "complaint"),
    [
        ({"a": "1", "b": "1", "c": "2"}, None),
        ({"a": "1", "lm_head": "1"}, r"'1' holds 'lm_head', but .*/1 does not"),
        ({"a": "1", "lm_head": "3"}, r"'3' holds 'lm_head', but .*/3 is not there"),
        ({f"layer{i}": "3" for i in range(9)}, "'layer0', 'layer1', 'layer2' and 6 more"),
        ({"a": INDEX}, "is not a safetensors file"),
        ({"a": ""}, "is not there"),
        ({"a": 1}, "`weight_map`"),
        ([], "`weight_map`"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused_when_written_and_when_read(
    tmp_path: Path, weight_map: object, complaint: str | None
) -> None:
    shards = {"1": ["a", "b"], "2": ["c"]}
    beside = prepare(tmp_path / "step_1")
    sharded(beside, weight_map, shards)
    if complaint is None:
        commit(beside, tmp_path / "step_1")
        verify(tmp_path / "step_1")
        return
    with pytest.raises(CheckpointError, match=complaint):
        commit(beside, tmp_path / "step_1")
    assert names(tmp_path) == set()
    target = tmp_path / "step_2"
    target.mkdir()
    sharded(target, weight_map, shards)
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in target.iterdir()
    }
    (target / MANIFEST).write_text(json.dumps({"files": files}))
    with pytest.raises(CheckpointError, match=complaint):
        verify(target)


def test_the_newest_is_so_by_number_and_all_others_are_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (9, 90, 100, 1000, 10000):
        save(tmp_path, step)
    (tmp_path / "step_1000" / "config.json").unlink()
    flip(tmp_path / "step_10000" / "model.safetensors", 7)
    for name in ("step_20000.tmp", "step_20000.broken-2", "step_0100", "step_last", "step_2", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("step_30000")
    (tmp_path / "step_40000").symlink_to("elsewhere")
    assert newest(tmp_path) == tmp_path / "step_100"
    for name, why in {
        "step_1000": "config.json is missing",
        "step_10000": "sha256",
        "step_20000.tmp": "not written to its end",
        "step_20000.broken-2": "set aside",
        "step_0100": "not step_ and a number",
        "step_last": "not step_ and a number",
        "latest": "step_30000, which is not there",
        "step_40000": "manifest.json is missing",
    }.items():
        assert [why in line for line in caplog.messages if f"{tmp_path / name} is passed over" in line] == [
            True
        ]
    assert len(caplog.messages) == 8, "the older, the complete, and what is not called step_ need no word"


def test_no_directory_and_an_empty_one_have_no_newest(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "none") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file"):
        newest(tmp_path / "file")


def test_a_checkpoint_behind_a_link_is_found_and_only_the_link_is_removed(tmp_path: Path) -> None:
    elsewhere = save(tmp_path / "elsewhere", 1)
    root = tmp_path / "checkpoints"
    root.mkdir()
    (root / "step_1").symlink_to(elsewhere)
    assert newest(root) == root / "step_1"
    save(root, 2)
    assert rotate(root, keep=1, just_saved=2) == [root / "step_1"]
    assert names(root) == {"step_2"}
    verify(elsewhere)


def test_what_is_set_aside_never_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for attempt in range(3):
        save(tmp_path, 10)
        save(tmp_path, 30)
        (tmp_path / "step_20").mkdir()
        (tmp_path / "step_30.old").mkdir()
        caplog.clear()
        set_aside(tmp_path, after=10)
        assert len(caplog.messages) == 3 and {record.levelno for record in caplog.records} == {
            logging.WARNING
        }
        assert len(names(tmp_path)) == 1 + 3 * (attempt + 1)
        assert newest(tmp_path) == tmp_path / "step_10"
    assert {"step_20.broken", "step_20.broken-2", "step_20.broken-3"} < names(tmp_path)
    save(tmp_path, 40)
    assert rotate(tmp_path, keep=1) == [tmp_path / "step_10"]
    assert newest(tmp_path) == tmp_path / "step_40"


@pytest.mark.parametrize(
    ("existing", "keep", "just_saved", "kept"),
    [
        ([900, 1000, 9900, 10000], 2, 10000, {9900, 10000}),
        ([900, 1000, 9900, 10000], 2, None, {9900, 10000}),
        ([10, 20], 1, 20, {20}),
        ([10, 20], 5, 20, {10, 20}),
        ([10, 1000], 1, 10, {10, 1000}),
        ([10, 20, 30, 1000, 2000], 2, 30, {20, 30, 1000, 2000}),
    ],
)
def test_the_newest_are_kept_by_number_and_those_of_another_run_let_be(
    tmp_path: Path, existing: list[int], keep: int, just_saved: int | None, kept: set[int]
) -> None:
    for step in existing:
        save(tmp_path, step)
    removed = rotate(tmp_path, keep=keep, just_saved=just_saved)
    assert removed == [tmp_path / f"step_{step}" for step in existing if step not in kept]
    assert names(tmp_path) == {f"step_{step}" for step in kept}


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no manifest": lambda target: (target / MANIFEST).unlink(),
    "short": lambda target: (target / "config.json").write_bytes(b""),
    "flipped": lambda target: flip(target / "model.safetensors", 9),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_checkpoint_is_not_one_of_those_kept(tmp_path: Path, damage: str) -> None:
    for step in (5, 10, 20, 30):
        save(tmp_path, step)
    DAMAGE[damage](tmp_path / "step_20")
    assert rotate(tmp_path, keep=2, just_saved=30) == [tmp_path / "step_5"]
    assert names(tmp_path) == {"step_10", "step_20", "step_30"}
    save(tmp_path, 40)
    assert rotate(tmp_path, keep=2, just_saved=40) == [tmp_path / "step_10", tmp_path / "step_20"]
    for step in (30, 40):
        DAMAGE[damage](tmp_path / f"step_{step}")
    assert rotate(tmp_path, keep=1) == [], "nothing is removed where nothing complete would be left"


def test_rotation_finishes_removals_and_touches_no_other_names(tmp_path: Path) -> None:
    for name in ("step_1.removed", "step_2.tmp", "step_3.broken", "notes"):
        (tmp_path / name).mkdir()
    assert rotate(tmp_path, keep=1) == []
    assert names(tmp_path) == {"step_2.tmp", "step_3.broken", "notes"}
    with pytest.raises(CheckpointError, match="got keep 0"):
        rotate(tmp_path, keep=0)
