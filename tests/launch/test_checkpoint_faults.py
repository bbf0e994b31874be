"""Whatever fails or dies at whatever moment, the newest complete checkpoint is found afterwards."""

import contextlib
import errno
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_launch.checkpoint_store import (
    CheckpointError,
    commit,
    discard,
    newest,
    prepare,
    rotate,
    set_aside,
    verify,
)

EXIT = 77


class FaultyDisk:
    """Counts what changes or opens files; does `fault` in place of number `at`, or of all from it on.

    A write that fails has written its first half. Nothing is synced for real.
    """

    def __init__(self, at: int, fault: Callable[[], NoReturn], *, lasting: bool) -> None:
        self.count = 0
        self._at = at
        self._fault = fault
        self._lasting = lasting

    def operation(self, before_fault: Callable[[], object] = lambda: None) -> None:
        self.count += 1
        if self.count == self._at or (self._lasting and 0 < self._at < self.count):
            before_fault()
            self._fault()

    @contextlib.contextmanager
    def in_place(self) -> Iterator["FaultyDisk"]:
        with contextlib.ExitStack() as patches:
            for name in ("mkdir", "open", "rename", "replace", "rmdir", "unlink"):
                patches.enter_context(mock.patch.object(os, name, self._counted(vars(os)[name])))
            patches.enter_context(mock.patch.object(os, "fsync", lambda descriptor: self.operation()))
            patches.enter_context(mock.patch.object(io, "open", self._open))
            yield self

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            self.operation()
            return call(*args, **options)

        return counted

    def _open(self, path: Path, mode: str = "r", *args: object, **options: object) -> object:
        if "w" not in mode:
            return open(path, mode, *args, **options)  # type: ignore[call-overload]
        self.operation()
        return _FaultyFile(path, self)


class _FaultyFile(io.FileIO):
    def __init__(self, path: Path, disk: FaultyDisk) -> None:
        super().__init__(path, "w")
        self._disk = disk

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        self._disk.operation(lambda: super(_FaultyFile, self).write(data[: len(data) // 2]))
        return super().write(data)


class Died(BaseException):
    """Stands for the death of the process: from here on nothing reaches the disk."""


def die() -> NoReturn:
    raise Died


def disk_is_full() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save(root: Path, step: int, content: str) -> None:
    """As a trainer writes: what it runs into itself is reported, and the space is given back."""
    beside = prepare(root / f"step_{step}")
    try:
        (beside / "state").mkdir()
        for name in ("model", "state/rank_0"):
            (beside / name).write_bytes(content.encode())
    except OSError as error:
        discard(beside)
        raise CheckpointError("the trainer could not write") from error
    commit(beside, root / f"step_{step}")


def no_fault() -> contextlib.AbstractContextManager[FaultyDisk]:
    """Everything works, and nothing is synced."""
    return FaultyDisk(0, die, lasting=False).in_place()


def begin_first(root: Path) -> None:
    root.mkdir()


def begin_next(root: Path) -> None:
    save(root, 10, "first")


def begin_resumed(root: Path) -> None:
    """The newest is whole, what came after it is not, and every kind of thing is left over."""
    save(root, 10, "first")
    for step in (5, 20):
        save(root, step, "older")
        shutil.copytree(root / f"step_{step}", root / f"step_{step}.tmp")
    shutil.copytree(root / "step_20", root / "step_20.old")
    (root / "step_20" / "model").write_bytes(b"cut")
    (root / "step_10").rename(root / "step_10.old")
    (root / "step_5").rename(root / "step_5.removed")


def go_first(root: Path) -> None:
    save(root, 10, "first")


def go_next(root: Path) -> None:
    save(root, 20, "second")
    rotate(root, keep=1, just_saved=20)


def go_again(root: Path) -> None:
    save(root, 10, "second")
    rotate(root, keep=1, just_saved=10)


def go_resumed(root: Path) -> None:
    path = newest(root)
    assert path is not None
    set_aside(root, after=int(path.name.removeprefix("step_")))
    save(root, 20, "second")
    rotate(root, keep=1, just_saved=20)


# How it begins, what is done, and the checkpoints that may be the newest at any moment of it.
SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], tuple[str, str]]] = {
    "the first": (begin_first, go_first, ("nothing", "step_10 first")),
    "the next": (begin_next, go_next, ("step_10 first", "step_20 second")),
    "one again": (begin_next, go_again, ("step_10 first", "step_10 second")),
    "after a resume": (begin_resumed, go_resumed, ("step_10 first", "step_20 second")),
}


def found(root: Path) -> str:
    """The newest checkpoint and what it holds, from both its files."""
    path = newest(root)
    if path is None:
        return "nothing"
    verify(path)
    contents = {(path / name).read_text() for name in ("model", "state/rank_0")}
    return " ".join([path.name, *contents])


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_full_disk_at_any_operation_is_one_error_and_loses_nothing(
    tmp_path: Path, scenario: str, lasting: bool
) -> None:
    begin, go, (before, after) = SCENARIOS[scenario]
    for at in range(1, 1000):
        root = tmp_path / str(at)
        with no_fault():
            begin(root)
        with FaultyDisk(at, disk_is_full, lasting=lasting).in_place() as disk:
            try:
                go(root)
                allowed = {after}
            except CheckpointError as error:
                cause = error.__cause__
                assert isinstance(cause, OSError) and cause.errno == errno.ENOSPC
                allowed = {before, after}
        assert found(root) in allowed, f"operation {at}"
        if not lasting and allowed == {before, after}:
            with no_fault():
                go(root)
            assert found(root) == after, "the run goes on"
        if disk.count < at:
            break
    assert 15 < at < 200


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_that_dies_at_any_operation_leaves_the_one_before_or_the_new_one(
    tmp_path: Path, scenario: str
) -> None:
    command = [sys.executable, "-P", __file__, scenario, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=50)
    roots = list(tmp_path.iterdir())
    assert 15 < len(roots) < 200
    allowed = set(SCENARIOS[scenario][2])
    assert {found(root) for root in roots} == allowed
    for root in roots:
        if found(root) == SCENARIOS[scenario][2][0]:
            with no_fault():
                SCENARIOS[scenario][1](root)
            assert found(root) == SCENARIOS[scenario][2][1], "the next run goes on"


def die_everywhere(scenario: str, directory: Path) -> None:
    """Does the scenario in process after process, the k-th of which ends at its k-th operation."""
    begin, go, _ = SCENARIOS[scenario]
    for at in range(1, 1000):
        root = directory / str(at)
        with no_fault():
            begin(root)
        child = os.fork()
        if child == 0:
            with FaultyDisk(at, lambda: os._exit(EXIT), lasting=False).in_place():
                go(root)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        assert code == EXIT, code


WRITER = """
import itertools, sys
from pathlib import Path
from roll_launch.checkpoint_store import commit, newest, prepare, rotate, set_aside
root = Path(sys.argv[1])
found = newest(root)
start = 0 if found is None else int(found.name.removeprefix("step_"))
set_aside(root, after=start)
print(start, flush=True)
for step in itertools.count(start + 1):
    for attempt in range(2):
        beside = prepare(root / f"step_{step}")
        for shard in range(3):
            (beside / f"shard_{shard}").write_bytes(bytes([step % 251]) * 20_000)
        commit(beside, root / f"step_{step}")
        print(step, flush=True)
    rotate(root, keep=2, just_saved=step)
"""


def kill_again_and_again(root: Path, kills: int) -> None:
    rng = random.Random(kills)
    for _ in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
        )
        with writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline()]
            time.sleep(rng.uniform(0, 0.1))
            writer.kill()
            said += writer.stdout.readlines()
        path = newest(root)
        last = max(int(line) for line in said)
        assert last == 0 or (path is not None and int(path.name.removeprefix("step_")) in (last, last + 1))
    assert last > 1
    rotate(root, keep=2)
    prepare(root / "step_0").rmdir()
    assert len(list(root.iterdir())) == 2, "all that the kills left is cleared"


def test_a_writer_killed_at_random_moments_keeps_all_that_it_reported(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 15)


@pytest.mark.slow
def test_a_writer_killed_200_times_keeps_all_that_it_reported(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 200)


MOMENT = st.one_of(st.none(), st.integers(1, 40))
ACTION = st.one_of(
    st.tuples(st.just("save"), MOMENT, st.integers(1, 3)),
    st.tuples(st.just("save again"), MOMENT, st.just(0)),
    st.tuples(st.just("rotate"), MOMENT, st.integers(1, 3)),
    st.tuples(st.just("resume"), MOMENT, st.just(0)),
    st.tuples(st.just("damage the newest"), st.none(), st.just(0)),
)


def act(root: Path, action: str, argument: int, step: int, content: str) -> None:
    """One action of a run whose last step is `step`."""
    if action == "save":
        save(root, step + argument, content)
    elif action == "save again" and step:
        save(root, step, content)
    elif action == "rotate":
        rotate(root, keep=argument, just_saved=step or None)
    elif action == "resume":
        path = newest(root)
        set_aside(root, after=0 if path is None else int(path.name.removeprefix("step_")))


def complete_steps(root: Path) -> dict[int, str]:
    steps = {}
    for path in root.glob("step_*"):
        with contextlib.suppress(CheckpointError, ValueError):
            verify(path)
            steps[int(path.name.removeprefix("step_"))] = (path / "model").read_text()
    return steps


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTION, max_size=12))
def test_any_sequence_of_saves_kills_rotations_and_resumes_keeps_the_newest(
    actions: list[tuple[str, int | None, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number, (action, moment, argument) in enumerate(actions):
            before = complete_steps(root)
            step = max(before, default=0)
            if action == "damage the newest" and step:
                (root / f"step_{step}" / "state" / "rank_0").write_bytes(b"")
                before.pop(step)
            content = f"written by action {number}"
            with FaultyDisk(moment or 0, die, lasting=True).in_place(), contextlib.suppress(Died):
                act(root, action, argument, step, content)
            written = step + argument if action == "save" else step
            new = {written: content} if action.startswith("save") and written else {}
            allowed = [before] if moment or not new else []
            allowed += [{**before, **new}]
            path = newest(root)
            got = (0, "") if path is None else (int(path.name[5:]), (path / "model").read_text())
            assert got in [max(steps.items(), default=(0, "")) for steps in allowed]
            if action == "rotate":
                kept = sorted(before, reverse=True)[:argument]
                assert set(kept) <= set(complete_steps(root)) <= (set(before) if moment else set(kept))


if __name__ == "__main__":
    die_everywhere(sys.argv[1], Path(sys.argv[2]))
