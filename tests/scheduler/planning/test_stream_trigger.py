"""The stream trainer's trigger: once a rollout, between two shares, and only if what runs still fits."""

import json
from pathlib import Path

import numpy as np
import pytest
from roll_scheduler import SchedulerError, StreamRule, StreamTrigger, sample_weights

CASES = {
    case["name"]: case
    for case in json.loads(
        (Path(__file__).parents[2] / "data" / "vectors" / "rollpacker_stream_trainer.json").read_text()
    )["cases"]
}


def rule_of(case):
    params = case["params"]
    return StreamRule(least=params["lo"], most=params["hi"], step=params["step"])


def holds(case):
    total = case["inputs"]["total"]
    return [
        rule_of(case).holds(done=done, new=new, total=total)
        for done, new in case["inputs"]["done_and_newly_done"]
    ]


def test_the_condition_holds_where_the_paper_s_does():
    case = CASES["trigger checks, total=100"]
    assert holds(case) == case["expected"]["attempt_scale_down"]
    case = CASES["boundaries and latch"]
    assert holds(case) == case["expected"]["condition_holds"]


def test_it_is_tried_once_a_rollout():
    case = CASES["boundaries and latch"]
    trigger = StreamTrigger(rule_of(case))
    for _ in range(2):
        checks = [
            trigger.check(done=done, total=case["inputs"]["total"])
            for done, _ in case["inputs"]["done_and_newly_done"]
        ]
        assert checks == case["expected"]["attempt_scale_down_once_per_rollout"]
        trigger.begin()


@pytest.mark.parametrize("obstacle", [{"kv_needed": 11.0, "kv_left": 10.0}, {"splits": True}])
def test_what_would_not_fit_is_not_tried_again(obstacle):
    trigger = StreamTrigger()
    assert not trigger.check(done=30, total=100, **obstacle)
    assert not trigger.check(done=40, total=100)
    trigger.begin()
    assert trigger.check(done=40, total=100, kv_needed=10.0, kv_left=10.0)


def test_gradients_are_weighted_by_samples():
    case = CASES["gradient re-normalisation"]
    weights = sample_weights(case["inputs"]["samples_per_replica"])
    gradients = np.array(case["inputs"]["replica_mean_grad"])
    assert np.array(weights) @ gradients == pytest.approx(case["expected"]["correct"], abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StreamRule(least=0.6), r"StreamRule: got least=0.6, most=0.5"),
        (lambda: StreamRule().holds(done=5, new=6, total=10), r"got done=5, new=6, total=10"),
        (lambda: StreamRule().holds(done=0, new=0, total=0), r"total >= 1"),
        (lambda: sample_weights([0, 0]), r"sample_weights: got \[0, 0\]"),
        (lambda: sample_weights([3, -1]), r"sample_weights: got \[3, -1\]"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()
