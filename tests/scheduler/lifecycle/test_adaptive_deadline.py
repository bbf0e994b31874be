"""A grading deadline that follows from what correct answers took."""

import json
from pathlib import Path

import pytest
from roll_scheduler import AdaptiveDeadline, SchedulerError, SchedulerSnapshot

VECTOR = Path(__file__).parents[2] / "data" / "vectors" / "rollpacker_timeout.json"
CASES = {case["name"]: case for case in json.loads(VECTOR.read_text())["cases"]}


def deadline(case):
    params = case["params"]
    return AdaptiveDeadline(least_s=params["T_min"], factor=params["lambda"], most_s=params["T_max"])


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("anchor")])
def test_the_deadline_follows_the_anchor(name):
    case = CASES[name]
    assert deadline(case).seconds(case["inputs"]["T_anchor"]) == pytest.approx(case["expected"]["timeout"])


def test_the_anchor_is_the_longest_correct_grading_that_was_not_cut(core_run):
    case = CASES["running anchor per test case"]
    used = []
    run = core_run(
        groups_per_batch=5, group_size=1, retries=0, min_members=1, adaptive_grading=deadline(case)
    )
    run.admit()
    for ticket_id, (seconds, correct) in enumerate(case["inputs"]["duration_and_correct"]):
        run.generate(ticket_id)
        used.append(run.core.next_deadline - run.now)
        run.tick(min(seconds, used[-1]))
        if seconds < used[-1]:
            run.grade(ticket_id, value=float(correct))
    assert used == pytest.approx(case["expected"]["timeout_used_for_each"])
    assert run.core.snapshot().grading_anchor_s == pytest.approx(case["expected"]["final_anchor"])
    assert run.core.ledger.failures == {"adaptive_deadline": 3}
    assert run.value("adaptive_cuts") == 3


def test_a_cut_is_tried_again_and_is_no_reward(core_run):
    run = core_run(groups_per_batch=1, group_size=1, adaptive_grading=AdaptiveDeadline(most_s=4.0))
    run.admit()
    run.generate(0)
    run.tick(4.0)
    assert run.aborted == [(0, "deadline")] and list(run.grading) == [0]
    run.grade(0, value=0.5)
    assert run.take() == [0]


def test_shorter_deadlines_go_before_longer_ones_that_began_earlier(core_run):
    adaptive = AdaptiveDeadline(least_s=1.0, factor=1.0, most_s=20.0)
    run = core_run(groups_per_batch=3, group_size=1, retries=0, adaptive_grading=adaptive)
    run.admit()
    run.generate(0, 1)
    run.tick(2.0)
    run.grade(1, value=1.0)
    run.generate(2)
    run.tick(2.0)
    assert run.aborted == [(2, "deadline")], "2 s, while the first has 20"
    assert list(run.grading) == [0]


def test_the_fixed_deadline_still_holds_and_its_misses_are_not_counted_as_cuts(core_run):
    run = core_run(grade_deadline_s=3.0, adaptive_grading=AdaptiveDeadline(most_s=30.0))
    run.admit()
    run.generate(0)
    run.tick(3.0)
    assert run.core.ledger.failures == {"deadline": 1} and run.value("adaptive_cuts") == 0


def test_the_anchor_survives_a_resume(core_run):
    resume = SchedulerSnapshot(grading_anchor_s=4.0)
    run = core_run(adaptive_grading=AdaptiveDeadline(), core={"resume": resume})
    run.admit()
    run.generate(0)
    assert run.core.next_deadline == 6.0


@pytest.mark.parametrize(
    ("field", "value"), [("least_s", 0), ("factor", 0.9), ("most_s", 1.0), ("most_s", float("inf"))]
)
def test_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(
        SchedulerError, match=rf"AdaptiveDeadline\.{field}: got .*, allowed is a finite number"
    ):
        AdaptiveDeadline(**{field: value})
