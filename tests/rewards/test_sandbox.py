"""Sandboxes: outcomes, limits, several at a time, and their end."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from roll_rewards import RewardError
from roll_rewards.sandbox import Job, Limits, SandboxError, SandboxPool
from roll_rewards.sandbox.cell import Cell
from roll_rewards.sandbox.cgroup import ProcessGroup
from roll_rewards.sandbox.errors import CellRefusedError
from roll_rewards.sandbox.inside import scratch, wire
from roll_rewards.sandbox.inside.processes import descendants

LIMITS = Limits(wall_s=30, memory_mb=256)


def script(code: str, *, stdin: bytes = b"", limits: Limits = LIMITS) -> Job:
    return Job(mode="script", files={"main.py": code.encode()}, stdin=stdin, limits=limits)


async def test_outcome_tells_output_exit_code_and_time() -> None:
    async with SandboxPool(sandboxes=1) as pool:
        outcome = await pool.run(
            script("import sys\nprint(input())\nsys.stderr.write('e')\nsys.exit(3)", stdin=b"7")
        )
    assert (outcome.reason, outcome.code, outcome.stdout, outcome.stderr) == ("exited", 3, b"7\n", b"e")
    assert not outcome.succeeded
    assert 0 < outcome.seconds < 30
    assert outcome.isolation in ("namespaces", "bubblewrap", "rlimits")


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("while True: pass", {"wall_s": 0.5}, "wall"),
        ("while True: print('x' * 1000)", {"output_kb": 64}, "output"),
        ("print('x' * 100000)", {"output_kb": 64}, "output"),
        (
            "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
            "        x = bytearray(b'z') * (100 * 2**20)\n"
            "        time.sleep(20); os._exit(0)\ntime.sleep(20)",
            {"memory_mb": 256},
            "memory",
        ),
    ],
)
async def test_limit_that_ended_a_program_is_named(code: str, limits: dict[str, Any], reason: str) -> None:
    async with SandboxPool(sandboxes=1) as pool:
        outcome = await pool.run(script(code, limits=Limits(**{"wall_s": 30, **limits})))
    assert outcome.reason == reason
    assert len(outcome.stdout) <= Limits(**limits).output_kb * 1024


async def test_programs_see_nothing_of_those_before_them() -> None:
    async with SandboxPool(sandboxes=1) as pool:
        await pool.run(
            script("import os\nopen('left', 'w').close()\nos.environ['LEFT'] = '1'\nimport math\nmath.pi = 3")
        )
        code = "import math, os\nprint(os.listdir(), 'LEFT' in os.environ, math.pi > 3.1)"
        outcome = await pool.run(script(code))
    assert outcome.stdout == b"['main.py'] False True\n"


async def test_many_programs_share_few_sandboxes() -> None:
    async with SandboxPool(sandboxes=2) as pool:
        outcomes = await asyncio.gather(
            *(pool.run(script("print(input())", stdin=b"%d" % i)) for i in range(20))
        )
        assert [int(outcome.stdout) for outcome in outcomes] == list(range(20))
        assert pool.broken == 0


async def test_sandbox_that_breaks_is_replaced_and_its_program_tried_again() -> None:
    async with SandboxPool(sandboxes=1) as pool:
        await pool.run(script(""))
        running = asyncio.create_task(pool.run(script("import time\ntime.sleep(1)\nprint('again')")))
        await asyncio.sleep(0.3)
        warden = [pid for pid in descendants(os.getpid()) if b"inside.warden" in _command_line(pid)]
        os.kill(min(warden), 9)
        assert (await running).stdout == b"again\n"
        assert pool.broken == 1


async def test_cancelling_a_run_ends_its_program() -> None:
    before = descendants(os.getpid())
    pool = SandboxPool(sandboxes=1)
    running = asyncio.create_task(pool.run(script("while True: pass")))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await pool.run(script("print(1)"))).stdout == b"1\n"
    await pool.close()
    while descendants(os.getpid()) - before:
        await asyncio.sleep(0.05)


def test_pool_serves_one_event_loop_after_another() -> None:
    pool = SandboxPool(sandboxes=1)
    for number in (b"1", b"2"):
        assert asyncio.run(pool.run(script("print(input())", stdin=number))).stdout == number + b"\n"
    asyncio.run(pool.close())


async def test_isolation_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    async with SandboxPool(isolation="bubblewrap") as pool:
        with pytest.raises(SandboxError, match="bwrap"):
            await pool.run(script(""))


async def test_automatic_isolation_falls_back_when_the_kernel_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cell, "ready", _refuse_namespaces(Cell.ready))
    monkeypatch.setenv("PATH", "/nonexistent")
    async with SandboxPool(sandboxes=1) as pool:
        assert (await pool.run(script("print(1)"))).isolation == "rlimits"


def _refuse_namespaces(ready: Any) -> Any:
    async def refusing(self: Any) -> None:
        if self._isolation == "namespaces":
            raise CellRefusedError("not permitted")
        await ready(self)

    return refusing


@pytest.mark.parametrize(
    "limits", [{"wall_s": 0}, {"wall_s": float("nan")}, {"cpu_s": 0}, {"output_kb": 0}, {"scratch_mb": 0}]
)
def test_impossible_limit_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match=f"Limits.{next(iter(limits))} must be"):
        Limits(**limits)


@pytest.mark.parametrize("options", [{"sandboxes": 0}, {"isolation": "magic"}])
def test_impossible_pool_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match=next(iter(options))):
        SandboxPool(**options)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        5,
        -(10**5000),
        0.1,
        float("inf"),
        1j,
        "é\ud800",
        b"\xff",
        [1, (2, {3})],
        {(1, 2): None},
        {},
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_survive_the_wire_with_their_types(value: object) -> None:
    again = wire.loads(wire.dumps(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"[]",
        b'["i", 5]',
        b'["?"]',
        b"[" * 100_000,
        b'["S", [["l", []]]]',
        b'["d", [[["n"]]]]',
        b'["o", 1]',
    ],
)
def test_nonsense_on_the_wire_is_refused(data: bytes) -> None:
    with pytest.raises(wire.NotPlainError):
        wire.loads(data)


def test_scratch_directory_is_emptied_whatever_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    box = tmp_path / "box"
    box.mkdir()
    deep = box
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
    (box / "link").symlink_to(outside)
    (box / "d" / "link").symlink_to(outside)
    (box / "moved-0").mkdir()
    (box / "moved-1").touch()
    (box / "closed").mkdir(mode=0)
    scratch.empty(str(box))
    assert list(box.iterdir()) == []
    assert (outside / "kept").exists()


def test_space_and_number_of_files_are_watched(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"x" * 3 * 2**20)
    assert scratch.overfull(str(tmp_path), size_mb=1)
    assert not scratch.overfull(str(tmp_path), size_mb=4)


def test_control_group_is_removed_again() -> None:
    group = ProcessGroup.create(99)
    if group is None:
        pytest.skip("control groups cannot be made here")
    group.limit(processes=7, memory_mb=64)
    assert {file.name: file.read_text().strip() for file in group.limits}.items() <= {
        "pids.max": "7",
        "memory.max": str(64 * 2**20),
        "memory.limit_in_bytes": str(64 * 2**20),
    }.items()
    assert "pids.max" in {file.name for file in group.limits}
    group.remove()
    assert not any(path.exists() for path in group.directories)


def test_the_kernel_ends_what_takes_more_memory_than_a_control_group_allows() -> None:
    group = ProcessGroup.create(98)
    if group is None or not group.bounds_memory:
        pytest.skip("control groups of memory cannot be made here")
    group.limit(processes=8, memory_mb=64)
    enter = f"import os\nfor name in {group.entrances!r}:\n    open(name, 'w').write('0')\n"
    try:
        ended = subprocess.run([sys.executable, "-c", enter + "held = b'x' * (256 * 2**20)"], timeout=50)
        assert (ended.returncode, group.memory_kills) == (-signal.SIGKILL, 1)
    finally:
        group.remove()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
