"""Worker pools: what a call may do to its worker, and what it may not do to anyone else."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from roll_rewards import RewardError, Score
from roll_rewards.workers import CallFailed, WorkerDied, WorkerLimits, WorkerPool, WorkerTimedOut

HERE = "test_workers"
# A deadline that no healthy call misses, however loaded the machine.
AMPLE_S = 50.0


def add(a: int, b: int = 0) -> int:
    return a + b


def whoami() -> int:
    return os.getpid()


def loop_for_ever() -> None:
    while True:
        pass


def ignore_signals_and_sleep() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


def crash() -> None:
    ctypes.string_at(0)


def leave(code: int) -> None:
    os._exit(code)


def print_much() -> int:
    for _ in range(100):
        print("x" * 100_000)
        sys.stderr.write("y" * 100_000)
    return 1


def start_descendants_and_hang(note: str) -> None:
    """A child in a session of its own, and its child; both outlive an ordinary kill of this process."""
    code = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], "
        "start_new_session=True)\n"
        f"open({note!r}, 'a').write(f'{{os.getpid()}} {{p.pid}}\\n')\n"
        "time.sleep(300)"
    )
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    time.sleep(300)


def score() -> Score:
    return Score(value=0.5, parts={"a": 1.0})


def lambda_result() -> object:
    return lambda: 1


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /nonexistent/never",)


def evil_result() -> object:
    return Evil()


def take(size_mb: int) -> int:
    return len(bytearray(size_mb * 2**20))


async def test_calls_come_back_in_any_number_each_with_its_own_result() -> None:
    async with WorkerPool(workers=2) as pool:
        results = await asyncio.gather(
            *(pool.call(f"{HERE}:add", (i,), {"b": 1}, deadline_s=AMPLE_S) for i in range(300))
        )
        assert results == list(range(1, 301))
        assert pool.report().calls == 300
        assert pool.report().replaced == 0


async def test_results_may_be_scores_and_arrays_but_never_code() -> None:
    async with WorkerPool(workers=1) as pool:
        assert await pool.call(f"{HERE}:score", deadline_s=AMPLE_S) == Score(value=0.5, parts={"a": 1.0})
        array = await pool.call("numpy:arange", (4,), deadline_s=AMPLE_S)
        assert isinstance(array, np.ndarray)
        assert array.tolist() == [0, 1, 2, 3]
        with pytest.raises(CallFailed, match="the result cannot be sent"):
            await pool.call(f"{HERE}:lambda_result", deadline_s=AMPLE_S)
        with pytest.raises(WorkerDied, match=r"system is neither plain data nor a Score"):
            await pool.call(f"{HERE}:evil_result", deadline_s=AMPLE_S)
        assert await pool.call(f"{HERE}:add", (1,), deadline_s=AMPLE_S) == 1


@pytest.mark.parametrize("function", ["loop_for_ever", "ignore_signals_and_sleep"])
async def test_call_that_hangs_costs_itself_alone(function: str) -> None:
    async with WorkerPool(workers=1) as pool:
        hung = asyncio.create_task(pool.call(f"{HERE}:{function}", deadline_s=1.0))
        others = [asyncio.create_task(pool.call(f"{HERE}:add", (i,), deadline_s=AMPLE_S)) for i in range(20)]
        with pytest.raises(WorkerTimedOut, match="gave no result within 1 s"):
            await hung
        assert await asyncio.gather(*others) == list(range(20))
        report = pool.report()
        assert (report.timed_out, report.replaced, report.failed, report.died) == (1, 1, 0, 0)
        assert report.slowest[0].function == f"{HERE}:{function}"
        assert report.slowest[0].outcome == "timed_out"


async def test_slow_call_gives_the_calls_behind_it_to_other_workers() -> None:
    async with WorkerPool(workers=2) as pool:
        # Short calls teach the pool to send ahead.
        await asyncio.gather(*(pool.call("time:sleep", (0.0,), deadline_s=AMPLE_S) for _ in range(50)))
        slow = [asyncio.create_task(pool.call("time:sleep", (600.0,), deadline_s=5.0))]
        quick = [asyncio.create_task(pool.call("time:sleep", (0.0,), deadline_s=AMPLE_S)) for _ in range(6)]
        done, _ = await asyncio.wait([*slow, *quick], return_when=asyncio.FIRST_EXCEPTION)
        assert set(quick) <= done
        with pytest.raises(WorkerTimedOut):
            await slow[0]


@pytest.mark.parametrize(("function", "args"), [("crash", ()), ("leave", (0,)), ("leave", (3,))])
async def test_worker_that_dies_is_replaced_and_costs_its_own_call(function: str, args: tuple) -> None:
    async with WorkerPool(workers=1) as pool:
        before = await pool.call(f"{HERE}:whoami", deadline_s=AMPLE_S)
        with pytest.raises(WorkerDied, match="lost its worker"):
            await pool.call(f"{HERE}:{function}", args, deadline_s=AMPLE_S)
        after = await pool.call(f"{HERE}:whoami", deadline_s=AMPLE_S)
        assert before != after


async def test_descendants_of_a_killed_worker_die_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    async with WorkerPool(workers=1) as pool:
        hung = asyncio.create_task(
            pool.call(f"{HERE}:start_descendants_and_hang", (str(note),), deadline_s=AMPLE_S)
        )
        while not (note.exists() and note.read_text().endswith("\n")):
            await asyncio.sleep(0.05)
        # Giving up a call stops it like a deadline does.
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        pids = [int(word) for word in note.read_text().split()]
        while any(_runs(pid) for pid in pids):
            await asyncio.sleep(0.05)
        assert await pool.call(f"{HERE}:add", (1,), deadline_s=AMPLE_S) == 1
    assert len(pids) == 2


async def test_function_that_fails_says_why() -> None:
    async with WorkerPool(workers=1) as pool:
        for function, args, message in [
            ("math:sqrt", (-1,), "ValueError: math domain error"),
            ("no_such_module_anywhere:f", (), "ModuleNotFoundError"),
            ("math:nothing", (), "AttributeError"),
            ("sys:exit", (3,), "SystemExit: 3"),
            ("nocolon", (), "named as 'module:function'"),
        ]:
            with pytest.raises(CallFailed) as caught:
                await pool.call(function, args, deadline_s=AMPLE_S)
            assert message in str(caught.value)
        assert pool.report().replaced == 0
        with pytest.raises(CallFailed, match="arguments of 'math:sqrt' cannot be sent"):
            await pool.call("math:sqrt", (lambda: 1,), deadline_s=AMPLE_S)


async def test_memory_processor_time_output_and_size_are_limited() -> None:
    limits = WorkerLimits(memory_mb=1024, cpu_s=1, result_mb=1, request_mb=1)
    async with WorkerPool(workers=1, limits=limits) as pool:
        with pytest.raises(CallFailed, match="MemoryError"):
            await pool.call(f"{HERE}:take", (1500,), deadline_s=AMPLE_S)
        with pytest.raises(CallFailed, match="bytes, above 1048576"):
            await pool.call("builtins:bytes", (2**21,), deadline_s=AMPLE_S)
        with pytest.raises(CallFailed, match="arguments of 'builtins:len' have"):
            await pool.call("builtins:len", (b"x" * 2**21,), deadline_s=AMPLE_S)
        assert await pool.call(f"{HERE}:print_much", deadline_s=AMPLE_S) == 1
        with pytest.raises(WorkerDied):
            await pool.call(f"{HERE}:loop_for_ever", deadline_s=AMPLE_S)
        # The processor time of earlier calls is not held against later ones.
        assert await pool.call(f"{HERE}:add", (1,), deadline_s=AMPLE_S) == 1


async def test_preloaded_module_that_cannot_be_imported_is_named() -> None:
    async with WorkerPool(workers=2, preload=("no_such_module_anywhere",)) as pool:
        with pytest.raises(WorkerDied, match=r"cannot be imported: ModuleNotFoundError.*no_such_module_any"):
            await pool.call("math:sqrt", (4,), deadline_s=AMPLE_S)


async def test_pool_survives_the_death_of_the_parent_of_its_workers() -> None:
    async with WorkerPool(workers=2) as pool:
        worker = await pool.call(f"{HERE}:whoami", deadline_s=AMPLE_S)
        nursery = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(nursery, signal.SIGKILL)
        results = await asyncio.gather(
            *(pool.call(f"{HERE}:add", (i,), deadline_s=AMPLE_S) for i in range(10)), return_exceptions=True
        )
        assert all(result == i or isinstance(result, WorkerDied) for i, result in enumerate(results))
        assert await pool.call(f"{HERE}:add", (5,), deadline_s=AMPLE_S) == 5
        assert not _runs(worker)


async def test_closing_ends_all_processes_and_fails_what_waits() -> None:
    pool = WorkerPool(workers=2)
    worker = await pool.call(f"{HERE}:whoami", deadline_s=AMPLE_S)
    waiting = [asyncio.create_task(pool.call("time:sleep", (600,), deadline_s=AMPLE_S)) for _ in range(5)]
    await asyncio.sleep(0.1)
    await pool.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, WorkerDied) for result in results)
    assert not _runs(worker)
    assert await pool.call(f"{HERE}:add", (1,), deadline_s=AMPLE_S) == 1
    await pool.close()


def test_pool_serves_one_event_loop_after_another_with_the_same_workers() -> None:
    pool = WorkerPool(workers=1)
    first = asyncio.run(_call(pool, "whoami"))
    assert asyncio.run(_call(pool, "whoami")) == first
    asyncio.run(pool.close())


@pytest.mark.parametrize("options", [{"workers": 0}, {"slowest": -1}])
def test_impossible_pool_is_refused(options: dict) -> None:
    with pytest.raises(RewardError, match="needs workers >= 1 and slowest >= 0"):
        WorkerPool(**options)


@pytest.mark.parametrize("options", [{"memory_mb": 1}, {"cpu_s": 0}, {"result_mb": 0}, {"request_mb": -1}])
def test_impossible_limit_is_refused(options: dict) -> None:
    with pytest.raises(RewardError, match="WorkerLimits"):
        WorkerLimits(**options)


async def _call(pool: WorkerPool, function: str) -> object:
    return await pool.call(f"{HERE}:{function}", deadline_s=AMPLE_S)


def _runs(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
