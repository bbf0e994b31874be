"""Hostile programs: contained, rightly scored, and without trace, in namespaces and without them."""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import hostile_programs
import pytest
from hostile_programs import Hostile
from roll_rewards.graders.code import Code
from roll_rewards.graders.code.local import close_pools
from roll_rewards.sandbox import Job, Limits, SandboxError, SandboxPool
from roll_rewards.sandbox.inside import kernel
from roll_rewards.sandbox.inside.processes import descendants

WALLS = ("namespaces", "rlimits")


def graded_with(program: Hostile, walls: str) -> Code:
    return Code(
        language=program.language,
        wall_s=program.wall_s,
        memory_mb=512,
        sandboxes=2,
        isolation=walls,
        compile_s=5,
    )


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    """After the pools end, no process and no scratch directory is left."""
    # Whatever a sandbox loses would be reparented to this process, and so be seen.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    before = descendants(os.getpid())
    yield
    await close_pools()
    left = descendants(os.getpid()) - before
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)
    assert not left
    assert not list(Path(tempfile.gettempdir()).glob(f"roll-sandbox-{os.getpid()}-*"))
    assert not list(Path("/sys/fs/cgroup").glob(f"*/roll-sandbox-{os.getpid()}-*"))


@pytest.mark.parametrize("walls", WALLS)
async def test_containment_holds_against_a_bounded_probe(walls: str) -> None:
    """Run alone and first: small attempts that would be harmless if they succeeded."""
    probe = (
        "import os, time\nn = 1\nfor _ in range(11):\n    try:\n        child = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if child == 0:\n        time.sleep(5); os._exit(0)\n    n += 1\n"
        "try: bytearray(b'z') * (128 * 2**20); memory = 'much'\nexcept MemoryError: memory = 'little'\n"
        "try: open('/usr/roll_probe', 'w'); files = 'open'\nexcept OSError: files = 'shut'\n"
        "print(n, memory, files, os.getuid() != 0)"
    )
    limits = Limits(wall_s=20, memory_mb=96, processes=8)
    await available(walls)
    async with SandboxPool(sandboxes=1, isolation=walls) as pool:
        outcome = await pool.run(Job(mode="script", files={"main.py": probe.encode()}, limits=limits))
    assert outcome.stdout.decode().split() == ["8", "little", "shut", "True"], outcome
    assert outcome.isolation == walls


def chunks() -> list[tuple[str, list[Hostile]]]:
    """The programs in groups of a size that a test can run in time."""
    groups = []
    for kind in ("EXHAUSTION", "ENDLESS", "PROCESSES", "ESCAPES", "LIES", "TEXTS", "OTHER_LANGUAGES"):
        programs = getattr(hostile_programs, kind)
        groups += [(f"{kind}-{i}", programs[i : i + 10]) for i in range(0, len(programs), 10)]
    return groups


@pytest.mark.timeout(300)
@pytest.mark.parametrize("walls", ["namespaces", pytest.param("rlimits", marks=pytest.mark.slow)])
@pytest.mark.parametrize("programs", [pytest.param(p, id=name) for name, p in chunks()])
async def test_hostile_programs_are_contained_and_get_what_they_deserve(
    programs: list[Hostile], walls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await available(walls)
    monkeypatch.setenv("HOSTILE_SECRET", "token")
    wrong = []

    async def run(program: Hostile) -> None:
        killed = program.killed_outside_namespaces and walls != "namespaces"
        deserved = 0.0 if killed else program.value
        columns = {"entry": program.entry} if program.entry else {}
        response = f"```\n{program.code}\n```"
        score = await graded_with(program, walls).grade(response, program.tests, **columns)
        if score.value != deserved or score.failure is not None:
            wrong.append(f"{program.name}: {score.value}, {dict(score.parts)}")
        if program.wall_s < 2 and not score.timed_out:
            wrong.append(f"{program.name}: not counted as timed out")

    for pair in [programs[i : i + 2] for i in range(0, len(programs), 2)]:
        async with asyncio.TaskGroup() as group:
            for program in pair:
                group.create_task(run(program))
    assert wrong == []
    good = await Code(isolation=walls, memory_mb=512).grade(
        "print('alive')", [{"stdin": "", "stdout": "alive"}]
    )
    assert good.value == 1.0


def test_there_are_enough_hostile_programs_and_their_names_differ() -> None:
    names = [program.name for program in hostile_programs.ALL]
    assert len(names) == len(set(names))
    assert len(names) >= 60


@pytest.mark.parametrize("walls", WALLS)
async def test_expected_answer_is_nowhere_in_the_memory_of_a_program(walls: str) -> None:
    """The program reads all of its memory; an earlier right answer to the same test went before it."""
    await available(walls)
    canary = f"canary-{secrets.token_hex(16)}"
    tests = [{"stdin": "", "stdout": canary}]
    grader = Code(isolation=walls, sandboxes=1, wall_s=30)
    assert (await grader.grade(f"print('{canary}')", tests)).value == 1.0
    search = (
        "import re\nfound = b'nothing'\nfor line in open('/proc/self/maps'):\n"
        "    span, rights = line.split()[:2]\n"
        "    if 'r' not in rights or '[v' in line: continue\n"
        "    a, b = (int(x, 16) for x in span.split('-'))\n"
        "    with open('/proc/self/mem', 'rb', buffering=0) as f:\n"
        "        try: f.seek(a); data = f.read(b - a)\n"
        "        except (OSError, OverflowError): continue\n"
        "    m = re.search(rb'canar[y]-[0-9a-f]{32}', data)\n"
        "    if m: found = m[0]\nprint(found.decode())"
    )
    score = await grader.grade(search, tests)
    assert score.value == 0.0
    if walls == "namespaces":
        # The search itself works: it finds what the program holds.
        own = search.replace("import re\n", f"import re\nx = b'{canary}'\n")
        assert (await grader.grade(own, tests)).value == 1.0


@pytest.mark.parametrize("walls", WALLS)
async def test_links_in_the_scratch_space_lead_its_removal_nowhere(walls: str, tmp_path: Path) -> None:
    await available(walls)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    os.chmod(tmp_path, 0o777)
    os.chmod(precious, 0o777)
    code = (
        f"import os\nos.symlink({str(precious)!r}, 'a')\n"
        f"os.mkdir('d'); os.symlink({str(precious)!r}, 'd/b')\n"
        f"os.symlink({str(precious / 'file')!r}, 'f')\n"
        "try: open('a/new', 'w').close(); open('f', 'w').close()\nexcept OSError: pass\nprint('done')"
    )
    score = await Code(isolation=walls).grade(code, [{"stdin": "", "stdout": "done"}])
    assert score.value == 1.0
    assert (precious / "file").read_text() == "kept"
    assert [path.name for path in precious.iterdir()] == ["file"]


@pytest.mark.parametrize("walls", WALLS)
async def test_abstract_sockets_of_the_host_cannot_be_reached(walls: str) -> None:
    await available(walls)
    name = f"\0roll-hostile-{os.getpid()}-{walls}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        code = (
            f"import socket\ntry:\n    socket.socket(socket.AF_UNIX).connect({name!r})\n"
            f"    print('escaped')\n"
            "except OSError:\n    print('contained')"
        )
        score = await Code(isolation=walls).grade(code, [{"stdin": "", "stdout": "contained"}])
    assert score.value == 1.0


async def test_grader_that_is_cancelled_leaves_no_program_behind() -> None:
    tests = [{"stdin": "", "stdout": ""}]
    grading = asyncio.create_task(Code(wall_s=60).grade("while True: pass", tests))
    await asyncio.sleep(1.0)
    grading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await grading
    assert (await Code().grade("print(1)", [{"stdin": "", "stdout": "1"}])).value == 1.0


async def available(walls: str) -> None:
    """Skip where the kernel does not allow these walls."""
    if walls not in _AVAILABLE:
        async with SandboxPool(sandboxes=1, isolation=walls) as pool:  # type: ignore[arg-type]
            try:
                await pool.run(Job(mode="script", files={"main.py": b""}))
            except SandboxError as error:
                _AVAILABLE[walls] = str(error)
            else:
                _AVAILABLE[walls] = ""
    if _AVAILABLE[walls]:
        pytest.skip(_AVAILABLE[walls])


_AVAILABLE: dict[str, str] = {}
