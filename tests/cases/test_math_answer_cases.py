"""Answer pairs, bound to the `math` grader with its defaults; hostile ones are bounded in time and effect."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from roll_rewards import grade_with_deadline, make_grader

PATH = Path(__file__).parent.parent / "data" / "cases" / "math_answers.jsonl"
CASES = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_answer_is_judged_as_the_case_says(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    grader = make_grader("math")
    # The first comparison of a run starts the worker processes; that is not the answer's time.
    await grade_with_deadline(grader, r"\boxed{x}", "y", deadline_s=120)
    started = time.monotonic()
    score = await grade_with_deadline(grader, given["prediction"], given["gold"], deadline_s=60)
    assert (score.value == 1.0) is expected["correct"]
    if given["gold"]:
        assert score.failure is None
    else:
        assert score.failure is not None and score.failure.kind == "reference"
    if "max_seconds" in expected:
        assert time.monotonic() - started < expected["max_seconds"]
    if "forbidden_path" in expected:
        assert not Path(expected["forbidden_path"]).exists()


def test_no_case_was_lost() -> None:
    assert len(CASES) == 102
