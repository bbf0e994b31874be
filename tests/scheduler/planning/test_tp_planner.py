"""The tensor-parallel planner: doubles when preemptions rise, halves when there are none."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerError, TpPlanner, TpRule, planned_tp

CASES = json.loads(
    (Path(__file__).parents[2] / "data" / "vectors" / "rollpacker_tp_planner.json").read_text()
)["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_plans_what_the_paper_s_rule_gives(case):
    params = case["params"]
    rule = TpRule(most=params["max_tp"], rise=params["rise"], zero_steps=params["zero_steps"])
    planned = planned_tp(case["inputs"]["preemptions"], rule, tp=case["inputs"]["tp0"])
    assert planned == case["expected"]["tp_after_each_step"]


def test_short_rounds_are_not_compared_with_long_ones():
    planner = TpPlanner(TpRule(most=8))
    for _ in range(3):
        planner.observe(10, "long")
        planner.observe(100, "short")
    assert planner.tp == 1
    planner.observe(11, "long")
    assert planner.tp == 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 8), st.integers(1, 8))
def test_it_stays_within_one_server_and_goes_on_after_a_restart(counts, most, tp):
    rule = TpRule(most=most)
    tp = min(tp, most)
    half = len(counts) // 2
    first = TpPlanner(rule, tp=tp)
    planned = [first.observe(count) for count in counts[:half]]
    second = TpPlanner(rule)
    second.restore(json.loads(json.dumps(first.state())))
    planned += [second.observe(count) for count in counts[half:]]
    assert planned == planned_tp(counts, rule, tp=tp)
    assert all(1 <= each <= most for each in planned)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TpRule(most=0), r"TpRule.most: got 0, allowed is an integer >= 1"),
        (lambda: TpRule(most=8, rise=0.9), r"TpRule.rise: got 0.9"),
        (lambda: TpPlanner(TpRule(most=4), tp=8), r"TpPlanner.tp: got 8, allowed is 1 to 4"),
        (lambda: TpPlanner(TpRule(most=4)).observe(-1), r"got -1 preemptions, allowed is >= 0"),
        (lambda: TpPlanner(TpRule(most=4)).restore({}), r"TpPlanner.restore: got what is no state"),
        (
            lambda: TpPlanner(TpRule(most=4)).restore(TpPlanner(TpRule(most=8), tp=8).state()),
            r"got format 1 and tp 8, allowed are 1 and 1 to 4",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()
