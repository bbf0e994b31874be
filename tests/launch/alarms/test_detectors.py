"""Each detector sees its fault in a run that was healthy before, and nothing else does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_launch.alarms import Detector
from roll_launch.alarms.length import LengthReward
from roll_launch.alarms.policy import EntropyCollapse, KlExplosion
from roll_launch.alarms.rates import FailureRateJump, ParseRateDrop
from roll_launch.alarms.skipped import SkippedUpdates
from roll_launch.alarms.stage import policy_detectors
from roll_launch.config import (
    EntropyCollapseConfig,
    FailureRateJumpConfig,
    KlExplosionConfig,
    LengthRewardConfig,
    ParseRateDropConfig,
    PolicyAlarmsConfig,
    SkippedUpdateConfig,
)

Metrics = dict[str, float]

FAULTS: dict[str, Metrics] = {
    "skipped_update": {"actor/skipped_steps": 1.0},
    "equal_scores": {"critic/score/max": 0.0, "critic/score/min": 0.0, "critic/score/mean": 0.0},
    "zero_advantages": {"critic/advantages/max": 0.0, "critic/advantages/min": 0.0},
    "all_masked": {"training/samples": 0.0, "training/left_out": 128.0},
    "entropy_collapse": {"actor/entropy": 0.004},
    "kl_explosion": {"actor/ppo_kl": 0.8},
    "ratio_explosion": {"actor/ratio_std": 3.0, "actor/ratio_max": 148.0},
    "parse_rate_drop": {"rewards/parsed_rate": 0.55},
    "failure_rate_jump": {"rollout/failure_rate": 0.3},
}
"""What a faulty step looks like."""


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_is_told_and_by_its_own_alarm_alone(name: str, healthy: list[Metrics], bench: Any) -> None:
    watched = bench()
    faulty = [step | FAULTS[name] for step in healthy[40:48]]
    assert watched.watch([*healthy[:40], *faulty]) == [name]
    alarm = watched.shown[0]
    assert alarm.metric in FAULTS[name]
    assert alarm.value == FAULTS[name][alarm.metric]
    assert f"({alarm.metric} {alarm.value:.4g}, limit {alarm.threshold:.4g}). " in alarm.message
    assert 41 <= alarm.step <= 45


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("kl_explosion", {"actor/ppo_kl": -0.8}),
        ("kl_explosion", {"actor/ppo_kl": math.inf}),
        ("kl_explosion", {"actor/ref_kl": 4.0}),
        ("ratio_explosion", {"actor/pg_clipfrac": 0.9}),
    ],
)
def test_each_sign_of_a_runaway_policy_counts(
    name: str, metrics: Metrics, healthy: list[Metrics], bench: Any
) -> None:
    watched = bench()
    assert watched.watch([*healthy[:10], healthy[10] | metrics]) == [name]
    assert watched.shown[0].metric in metrics


def test_a_run_that_learns_raises_no_alarm_though_its_entropy_falls_to_a_sixteenth(
    healthy: list[Metrics], bench: Any
) -> None:
    assert len(healthy) == 80
    assert healthy[75]["actor/entropy"] < sum(step["actor/entropy"] for step in healthy[:5]) / 5 / 16
    assert bench().watch(healthy) == []


def test_the_same_run_with_graders_that_never_find_an_answer_has_equal_scores_and_no_drop(
    healthy: list[Metrics], bench: Any
) -> None:
    blind = {"rewards/parsed_rate": 0.0} | FAULTS["equal_scores"]
    assert bench().watch(step | blind for step in healthy[:10]) == ["equal_scores"]


def test_a_single_batch_of_equal_scores_is_no_alarm(healthy: list[Metrics], bench: Any) -> None:
    one = [healthy[1] | FAULTS["equal_scores"] | FAULTS["zero_advantages"]]
    assert bench().watch([healthy[0], *one, healthy[2], *one, healthy[3]]) == []


def test_a_single_sample_is_no_batch_of_equal_scores(bench: Any) -> None:
    one = {"critic/score/max": 1.0, "critic/score/min": 1.0, "rewards/graded": 1.0}
    assert bench().watch([one] * 10) == []


@pytest.mark.parametrize("samples", [16, 128])
def test_a_parse_rate_that_strays_by_chance_is_no_drop(samples: int) -> None:
    detector = ParseRateDrop(ParseRateDropConfig())
    level = 0.6
    stray = level - 2.9 * math.sqrt(level * (1 - level) / samples)
    readings = [
        detector.read({"rewards/parsed_rate": rate, "rewards/graded": float(samples)})
        for rate in [level] * 5 + [max(stray, level - 0.19)]
    ]
    assert readings[:3] == [None] * 3
    assert not any(reading.fault for reading in readings if reading is not None)


def test_a_parse_rate_that_sinks_slowly_is_a_drop_in_the_end() -> None:
    detector = ParseRateDrop(ParseRateDropConfig(drop=0.2, window=20))
    readings = [
        detector.read({"rewards/parsed_rate": 1 - step / 40, "rewards/graded": 128.0}) for step in range(40)
    ]
    assert any(reading is not None and reading.fault for reading in readings)
    assert readings[-1] is not None
    assert readings[-1].fault


def test_failures_from_the_first_step_on_are_a_jump_from_none() -> None:
    detector = FailureRateJump(FailureRateJumpConfig())
    for _ in range(5):
        reading = detector.read({"rollout/failure_rate": 0.5, "rewards/graded": 64.0})
        assert reading is not None
        assert reading.fault


def test_failures_that_were_always_there_within_the_limit_become_the_level() -> None:
    detector = FailureRateJump(FailureRateJumpConfig(rise=0.1))
    metrics = {"rollout/failure_rate": 0.08, "rewards/graded": 1024.0}
    for _ in range(30):
        assert not detector.read(metrics).fault
    assert not detector.read(metrics | {"rollout/failure_rate": 0.16}).fault
    assert detector.read(metrics | {"rollout/failure_rate": 0.25}).fault


def test_entropy_is_compared_with_the_first_steps_of_the_stage() -> None:
    detector = EntropyCollapse(EntropyCollapseConfig(share=0.1, first_steps=2))
    assert [detector.read({"actor/entropy": value}) for value in (1.0, 3.0)] == [None, None]
    assert not detector.read({"actor/entropy": 0.21}).fault
    assert detector.read({"actor/entropy": 0.19}).fault


def test_a_limit_that_is_null_is_not_looked_at() -> None:
    detector = KlExplosion(KlExplosionConfig(update=None))
    assert detector.read({"actor/ppo_kl": 9.0}) is None
    assert not detector.read({"actor/ppo_kl": 9.0, "actor/ref_kl": 0.1}).fault


def growing(
    *, correlation: float, per_token: float, growth: float, from_length: float = 0.0, steps: int = 40
) -> list[Metrics]:
    """Steps whose length grows by `growth`; the reward rises by 0.4 more, less the share `from_length`."""
    slope = per_token
    trace = []
    for step in range(steps):
        length = 100 * (1 + growth * step / steps)
        reward = 0.2 + slope * (length - 100) + (1 - from_length) * 0.4 * step / steps
        trace.append(
            {
                "critic/rewards/mean": reward,
                "response_length/mean": length,
                "critic/reward_length_correlation": correlation,
                "critic/reward_length_slope": slope,
            }
        )
    return trace


@pytest.mark.parametrize(
    ("what", "trace", "fires"),
    [
        ("pays for length", growing(correlation=0.8, per_token=0.004, growth=1.0, from_length=1), True),
        ("weakly so", growing(correlation=0.2, per_token=0.004, growth=1.0, from_length=1), False),
        ("learns more beside", growing(correlation=0.8, per_token=0.001, growth=1.0, from_length=0), False),
        ("wrong ones longer", growing(correlation=-0.5, per_token=-0.001, growth=1.0), False),
        ("does not grow", growing(correlation=0.8, per_token=0.004, growth=0.05, from_length=1), False),
        ("shrinks", growing(correlation=0.8, per_token=0.004, growth=-0.5, from_length=1), False),
    ],
)
def test_the_reward_rises_with_length_only_where_length_explains_it(
    what: str, trace: list[Metrics], fires: bool
) -> None:
    detector = LengthReward(LengthRewardConfig())
    faults = [reading is not None and reading.fault for reading in map(detector.read, trace)]
    assert any(faults) is fires, what
    assert not any(faults[:9]), "half a window has 10 steps"


def test_a_window_without_any_spread_in_its_newer_half_says_nothing() -> None:
    detector = LengthReward(LengthRewardConfig(window=4))
    trace = growing(correlation=0.9, per_token=0.004, growth=1.0, from_length=1, steps=8)
    bare = [{name: value for name, value in step.items() if "reward_length" not in name} for step in trace]
    assert [detector.read(step) for step in [*trace[:6], *bare[6:]]][-1] is None


NAMES = sorted(
    {name for fault in FAULTS.values() for name in fault}
    | {"rewards/graded", "response_length/mean", "critic/rewards/mean", "actor/ref_kl", "actor/pg_clipfrac"}
    | {"critic/reward_length_correlation", "critic/reward_length_slope"}
)
ANYTHING = st.dictionaries(st.sampled_from(NAMES), st.floats(allow_nan=True, allow_infinity=True))


def every_detector() -> list[Detector]:
    small = {"entropy_collapse": {"first_steps": 1}, "length_reward": {"window": 4}}
    config = PolicyAlarmsConfig.model_validate(small)
    return [SkippedUpdates(SkippedUpdateConfig()), *policy_detectors(config)]


@settings(deadline=None)
@given(st.lists(ANYTHING, max_size=8))
def test_no_detector_raises_whatever_the_metrics_are_or_lack(steps: list[Metrics]) -> None:
    for detector in every_detector():
        for metrics in steps:
            reading = detector.read(metrics)
            if reading is not None:
                assert not math.isnan(reading.value)
        assert all(value is None or math.isfinite(value) for step in detector.memory for value in step)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_that_is_nan_is_no_fault(
    name: str, healthy: list[Metrics], bench: Callable[..., Any]
) -> None:
    assert bench().watch([*healthy[:30], *(step | {name: math.nan} for step in healthy[30:])]) == []


def test_every_alarm_of_the_configuration_has_its_detector_under_the_same_name_and_an_advice() -> None:
    settings = {"repeat_every", "quiet_steps"}
    detectors = every_detector()
    assert {detector.name for detector in detectors} == PolicyAlarmsConfig.model_fields.keys() - settings
    assert all(detector.advice.endswith(".") and len(detector.advice) < 200 for detector in detectors)
