"""Programs that a code grader must judge rightly, and contain, whatever they do."""

import builtins
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from roll_rewards import Score
from roll_rewards.graders.code import Code
from roll_rewards.graders.code.local import close_pools
from roll_rewards.sandbox.inside import kernel
from roll_rewards.sandbox.inside.processes import descendants

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/cases/code_sandbox.jsonl").read_text().splitlines()
]
# A machine that is busy with other things may be late; the programs' own limits are not affected.
LATE_S = 60.0
SCORER_GROWTH_MB = 64
GOOD = "print(input())"


def grader(case: dict[str, Any], **options: Any) -> Code:
    limits = case["input"]["limits"]
    return Code(
        wall_s=limits["wall_s"],
        memory_mb=limits["memory_mb"],
        processes=limits["processes"],
        output_kb=limits["output_kb"],
        language=case["input"]["language"],
        **options,
    )


async def score(case: dict[str, Any], **options: Any) -> Score:
    given = case["input"]
    columns = {key: given[key] for key in ("mode", "entry") if key in given}
    response = f"```python\n{given['code']}\n```"
    return await grader(case, **options).grade(response, given["tests"], **columns)


@pytest.fixture
async def _pools_end():
    # Whatever a sandbox loses would be reparented to this process, and so be seen.
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    yield
    await close_pools()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.usefixtures("_pools_end")
@pytest.mark.parametrize("walls", ["auto", pytest.param("rlimits", marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", range(4))
async def test_programs_get_their_score_and_leave_nothing_behind(part: int, walls: Any, monkeypatch) -> None:
    warm = Code(isolation=walls)
    assert (await warm.grade(GOOD, [{"stdin": "7", "stdout": "7"}])).value == 1.0
    warm_processes = descendants(os.getpid())
    for case in CASES[part::4]:
        for name, value in case["input"].get("setup", {}).get("env", {}).items():
            monkeypatch.setenv(name, value)
        marker = Path("/tmp/qa_sandbox_marker")
        assert not marker.exists()
        names_before = dict(vars(builtins))
        memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.monotonic()
        result = await score(case, isolation=walls)
        expected = case["expected"]
        where = f"{case['id']}: {case['why']}"
        assert result.failure is None, where
        counts = (result.parts["passed"], result.parts["total"])
        assert counts == (expected["passed"], expected["total"]), where
        assert result.value == pytest.approx(expected["fraction"], abs=1e-3), where
        assert result.parts["all"] == expected["all_or_nothing"], where
        strict = await score(case, isolation=walls, credit="all") if counts[0] else result
        assert (strict.value == 1.0) == bool(expected["all_or_nothing"]), where
        limit = case["input"]["limits"]["wall_s"] * max(1, len(case["input"]["tests"]))
        assert time.monotonic() - started < 2 * limit + LATE_S, where
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
        assert grown_kb < SCORER_GROWTH_MB * 1024, where
        assert dict(vars(builtins)) == names_before, where
        assert not marker.exists(), where
        assert descendants(os.getpid()) == warm_processes, where
    assert (await warm.grade(GOOD, [{"stdin": "7", "stdout": "7"}])).value == 1.0
