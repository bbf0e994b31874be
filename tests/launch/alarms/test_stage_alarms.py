"""A stage's alarms: what is told where, what stays for the summary, what a resume needs, when a run ends."""

import json
import logging
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_launch.alarms import SkippedUpdatesError
from roll_launch.config import PolicyAlarmsConfig, SupervisedAlarmsConfig
from roll_learners import SkippedUpdate, StepResult

Metrics = dict[str, float]

FLAT = {"critic/score/max": 0.5, "critic/score/min": 0.5}


READ = (
    *(
        "critic/score/max",
        "critic/score/min",
        "rewards/graded",
        "rewards/parsed_rate",
        "rollout/failure_rate",
    ),
    *("actor/entropy", "actor/ppo_kl", "actor/ref_kl", "actor/ratio_std", "actor/pg_clipfrac"),
    *("critic/advantages/max", "critic/advantages/min", "training/samples", "training/left_out"),
    *("critic/rewards/mean", "response_length/mean", "critic/reward_length_correlation"),
    *("critic/reward_length_slope", "actor/skipped_steps"),
)
"""Every metric that a detector reads."""


def skipped(*samples: int, updates: int = 0, what: Any = "loss", loss: float = math.nan) -> StepResult:
    """A step that skipped an update."""
    record = SkippedUpdate(update=7, what=what, samples=samples, loss=loss, gradient_norm=math.nan)
    return StepResult(metrics={}, updates=updates, skipped=(record,))


def config(**alarms: Any) -> PolicyAlarmsConfig:
    return PolicyAlarmsConfig.model_validate(alarms)


def test_an_alarm_is_shown_logged_marked_in_the_metrics_and_recorded(
    healthy: list[Metrics], bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watched = bench()
    caplog.set_level(logging.INFO)
    marks = [watched.observe(step | FLAT) for step in healthy[:4]]
    marks += [watched.observe(step) for step in healthy[4:10]]
    assert [mark.get("alarm/equal_scores") for mark in marks] == [None, None, 1, 1, *[None] * 6]
    [alarm] = watched.shown
    assert (alarm.name, alarm.stage, alarm.step) == ("equal_scores", "rlvr", 3)
    assert watched.over == [("equal_scores", 9)]
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"rlvr step 3: alarm equal_scores: {alarm.message}"]
    assert "rlvr step 9: alarm equal_scores is over" in caplog.text
    assert watched.records["equal_scores"].summary() == {
        "name": "equal_scores",
        "stage": "rlvr",
        "count": 2,
        "first_step": 3,
        "last_step": 4,
        "metric": "critic/score/max",
        "worst": 0.5,
    }


def test_the_worst_value_is_the_one_farthest_beyond_its_limit(bench: Any) -> None:
    watched = bench()
    for value in (0.3, 0.9, 0.5):
        watched.observe({"actor/ppo_kl": value})
    watched.observe({"actor/ref_kl": 3.0})
    record = watched.records["kl_explosion"]
    assert (record.count, record.metric, record.worst) == (4, "actor/ppo_kl", 0.9)


def test_a_worst_value_that_is_no_number_is_null_and_stays_the_worst(bench: Any) -> None:
    watched = bench()
    for value in (0.3, math.inf, 0.9):
        watched.observe({"actor/ppo_kl": value})
    assert watched.records["kl_explosion"].worst is None
    json.dumps(watched.records["kl_explosion"].summary(), allow_nan=False)


def test_an_alarm_that_lasts_is_repeated_as_often_as_the_configuration_says(bench: Any) -> None:
    watched = bench(config(repeat_every=5))
    watched.watch([{"actor/ppo_kl": 0.5}] * 12)
    assert [alarm.step for alarm in watched.shown] == [1, 6, 11]
    assert not watched.shown[0].message.startswith("still: ")
    assert watched.shown[1].message.startswith("still: ")


@pytest.mark.parametrize("off", [None, config(kl_explosion=None)])
def test_null_switches_an_alarm_or_all_of_them_off(bench: Any, off: PolicyAlarmsConfig | None) -> None:
    watched = bench(off)
    assert watched.observe({"actor/ppo_kl": 0.5}) == {}
    assert watched.records == {}


def test_a_supervised_stage_watches_skipped_updates_alone(bench: Any) -> None:
    watched = bench(SupervisedAlarmsConfig())
    assert watched.observe({"actor/skipped_steps": 1.0, "actor/ppo_kl": 9.0}, skipped(3)) == {
        "alarm/skipped_update": 1
    }


def test_a_skipped_update_is_told_with_the_names_of_its_samples(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watched = bench()
    watched.observe({"actor/skipped_steps": 1.0}, skipped(3, 17, updates=1))
    [alarm] = watched.shown
    assert alarm.message.startswith(
        "update 7 skipped: the loss is not finite (loss nan, gradient norm nan) in sample 3, sample 17 "
        "(actor/skipped_steps 1, limit 0). "
    )


def test_every_skipped_update_is_named_in_the_log_also_where_the_alarm_is_not_repeated(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watched = bench()
    for sample in (3, 4, 5):
        watched.observe({"actor/skipped_steps": 1.0}, skipped(sample, updates=1))
    assert len(watched.shown) == 1
    assert all(f"in sample {sample}" in caplog.text for sample in (3, 4, 5))


def test_of_very_many_samples_some_are_named_and_the_others_counted(bench: Any) -> None:
    watched = bench()
    watched.observe({"actor/skipped_steps": 1.0}, skipped(*range(100)))
    assert "sample 31, and 68 more (" in watched.shown[0].message


def test_steps_in_a_row_without_an_update_end_the_run_with_an_error_that_names_them(bench: Any) -> None:
    watched = bench(config(skipped_update={"end_after": 4}))
    for sample in (3, 5, 8):
        watched.observe({"actor/skipped_steps": 1.0}, skipped(sample))
        watched.alarms.refuse_standstill()
    watched.observe({"actor/skipped_steps": 1.0}, skipped(13, what="gradient", loss=0.25))
    with pytest.raises(SkippedUpdatesError) as caught:
        watched.alarms.refuse_standstill()
    said = str(caught.value)
    assert said.startswith("no update was taken in 4 steps in a row (alarms.skipped_update.end_after is 4)")
    assert (
        "step 1: update 7 skipped: the loss is not finite (loss nan, gradient norm nan) in sample 3" in said
    )
    assert said.endswith("the gradient is not finite (loss 0.25, gradient norm nan) in sample 13")


@pytest.mark.parametrize(
    "between", [StepResult(metrics={}, updates=1), skipped(1, updates=1)], ids=["a sound step", "a half one"]
)
def test_an_update_that_is_taken_begins_the_count_anew(bench: Any, between: StepResult) -> None:
    watched = bench(config(skipped_update={"end_after": 2}))
    for _ in range(5):
        watched.observe({"actor/skipped_steps": 1.0}, skipped(3))
        watched.alarms.refuse_standstill()
        watched.observe({"actor/skipped_steps": 0.0}, between)
        watched.alarms.refuse_standstill()


def test_a_run_may_be_told_to_go_on_for_ever(bench: Any) -> None:
    watched = bench(config(skipped_update={"end_after": None}))
    for _ in range(50):
        watched.observe({"actor/skipped_steps": 1.0}, skipped(3))
        watched.alarms.refuse_standstill()


@pytest.mark.parametrize("cut", [3, 12, 41, 45])
def test_a_resume_goes_on_as_if_the_run_had_never_stopped(
    healthy: list[Metrics], bench: Any, cut: int
) -> None:
    steps = [
        *healthy[:40],
        *(step | FLAT | {"actor/entropy": 0.001} for step in healthy[40:60]),
        *healthy[60:],
    ]
    whole, first, second = bench(), bench(), bench()
    whole.watch(steps)
    first.watch(steps[:cut])
    second.alarms.restore(json.loads(json.dumps(first.alarms.state(), allow_nan=False)))
    second.step = cut
    second.watch(steps[cut:])
    assert first.shown + second.shown == whole.shown
    assert first.over + second.over == whole.over
    assert second.records == whole.records
    assert {alarm.name for alarm in whole.shown} == {"equal_scores", "entropy_collapse"}


def test_a_standstill_outlives_a_resume(bench: Any) -> None:
    first, second = (
        bench(config(skipped_update={"end_after": 3})),
        bench(config(skipped_update={"end_after": 3})),
    )
    for _ in range(2):
        first.observe({"actor/skipped_steps": 1.0}, skipped(3))
    second.alarms.restore(first.alarms.state())
    second.observe({"actor/skipped_steps": 1.0}, skipped(4))
    with pytest.raises(SkippedUpdatesError, match=r"3 steps in a row .* in sample 4"):
        second.alarms.refuse_standstill()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from(READ), st.floats()), max_size=12))
def test_alarms_never_raise_and_their_state_is_always_json(bench: Any, steps: list[Metrics]) -> None:
    watched = bench(config(entropy_collapse={"first_steps": 1, "steps": 1}, length_reward={"window": 4}))
    watched.watch(steps)
    json.dumps(watched.alarms.state(), allow_nan=False)
    json.dumps([record.summary() for record in watched.records.values()], allow_nan=False)


def test_a_state_of_before_there_were_alarms_is_taken(bench: Any) -> None:
    bench().alarms.restore({})
