"""What isolation costs: code against fresh interpreters, mathematics against a loop in this process.

Ratios within one run, alternating, so that a busy machine slows both sides alike. They are printed with
`-s` and kept in the benchmark's `extra_info`.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from roll_rewards.graders.code import Code
from roll_rewards.graders.code.local import close_pools
from roll_rewards.workers import WorkerPool

ROUNDS = 5
PROGRAMS = 60
FRESH = 20
ANSWERS = [rf"\boxed{{\frac{{{i}}}{{{i + 1}}}}}" for i in range(1, 41)]
GOLD = [f"{i}/{i + 1}" for i in range(1, 41)]


def verify(gold: str, answer: str) -> bool:
    """What one grading is: read both, compare. Without timeouts of its own, which need the main thread."""
    from math_verify import parse
    from math_verify import verify as same

    return bool(same(parse(gold, parsing_timeout=0), parse(answer, parsing_timeout=0), timeout_seconds=0))


def note(benchmark, name: str, ratios: list[float]) -> None:
    middle = statistics.median(ratios)
    print(f"{name}: {middle:.2f} (from {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)")
    benchmark.extra_info[name] = round(middle, 2)


def test_code_samples_per_second_over_those_of_fresh_interpreters(benchmark):
    """Samples of one test each, two at a time on both sides."""
    program = "a, b = map(int, input().split())\nprint(a + b)\n"
    tests = [{"stdin": "2 3\n", "stdout": "5\n"}]

    def fresh() -> None:
        async def one(turn: asyncio.Semaphore) -> None:
            async with turn:
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                output, _ = await child.communicate(b"2 3\n")
                assert output == b"5\n"

        async def every() -> None:
            turn = asyncio.Semaphore(2)
            await asyncio.gather(*(one(turn) for _ in range(FRESH)))

        asyncio.run(every())

    async def warm(grader: Code) -> None:
        scores = await asyncio.gather(*(grader.grade(program, tests) for _ in range(PROGRAMS)))
        assert all(score.value == 1.0 for score in scores)

    grader = Code(sandboxes=2)
    asyncio.run(warm(grader))
    ratios = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        fresh()
        between = time.perf_counter()
        asyncio.run(warm(grader))
        ended = time.perf_counter()
        ratios.append(((between - started) / FRESH) / ((ended - between) / PROGRAMS))
    note(benchmark, "code_speed_over_fresh_interpreter", ratios)
    benchmark.pedantic(lambda: asyncio.run(warm(grader)), rounds=1)
    asyncio.run(close_pools())


@pytest.mark.parametrize("workers", [1, 2])
def test_mathematics_in_workers_over_a_loop_in_this_process(benchmark, monkeypatch, workers):
    pytest.importorskip("math_verify")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    pool = WorkerPool(workers=workers, preload=("math_verify",))

    async def isolated() -> None:
        calls = (
            pool.call("test_code_grading:verify", pair, deadline_s=60)
            for pair in zip(GOLD, ANSWERS, strict=True)
        )
        assert all(await asyncio.gather(*calls))

    def direct() -> None:
        assert all(map(verify, GOLD, ANSWERS))

    asyncio.run(isolated())
    direct()
    ratios = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        direct()
        between = time.perf_counter()
        asyncio.run(isolated())
        ratios.append((between - started) / (time.perf_counter() - between))
    note(benchmark, f"isolated_maths_speed_over_direct_{workers}_workers", ratios)
    benchmark.pedantic(lambda: asyncio.run(isolated()), rounds=1)
    asyncio.run(pool.close())
