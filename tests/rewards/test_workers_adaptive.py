"""Adaptive deadlines against RollPacker's rule."""

import json
from pathlib import Path
from typing import Any

import pytest
from roll_rewards import RewardError
from roll_rewards.workers import AdaptiveDeadline

PATH = Path(__file__).parents[1] / "data/vectors/rollpacker_timeout.json"
VECTOR = json.loads(PATH.read_text())


def rule(params: dict[str, float]) -> AdaptiveDeadline:
    return AdaptiveDeadline(factor=params["lambda"], min_s=params["T_min"], max_s=params["T_max"])


@pytest.mark.parametrize("case", VECTOR["cases"], ids=lambda case: case["name"])
def test_limit_follows_the_rule(case: dict[str, Any]) -> None:
    deadline = rule(case["params"])
    if "T_anchor" in case["inputs"]:
        deadline.record("case", seconds=case["inputs"]["T_anchor"], right=True)
        assert deadline.limit("case") == pytest.approx(case["expected"]["timeout"], abs=VECTOR["tolerance"])
        return
    used = []
    for seconds, right in case["inputs"]["duration_and_correct"]:
        used.append(deadline.limit("case"))
        deadline.record("case", seconds=seconds, right=right)
    assert used == pytest.approx(case["expected"]["timeout_used_for_each"], abs=VECTOR["tolerance"])
    assert deadline.anchor("case") == case["expected"]["final_anchor"]


def test_cases_learn_apart_and_cuts_are_counted() -> None:
    deadline = AdaptiveDeadline(min_s=1, max_s=10)
    deadline.record("a", seconds=2.0, right=True)
    deadline.record("a", seconds=9.0, right=True)
    deadline.record("a", seconds=2.0, right=False)
    assert (deadline.limit("a"), deadline.limit("b"), deadline.cuts) == (3.0, 10.0, 1)
    deadline.record("b", seconds=11.0, right=False)
    assert deadline.cuts == 1


@pytest.mark.parametrize(
    "options", [{"factor": 0.5}, {"factor": float("nan")}, {"min_s": 0}, {"min_s": 9, "max_s": 3}]
)
def test_impossible_rule_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(RewardError, match="AdaptiveDeadline"):
        AdaptiveDeadline(**options)
