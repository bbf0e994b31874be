"""No schedule is below a bound, and the bounds are what their derivation says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import OverProvision
from roll_scheduler.simulator import (
    EngineModel,
    FlashModel,
    Setting,
    SimulationError,
    Trainer,
    Workload,
    capacity,
    longest_first,
    one_step_off,
    partial_rollout,
    queue,
    redundant_step_bound,
    simulate,
    speedup_ceiling,
    staleness_bound,
    static_split,
    step_bound,
    tail_rounds,
)

ENGINE = EngineModel(slots=64, base_s=0.010, sequence_s=50e-6)


class DrawnLengths:
    """Lengths from a small generator, so that hypothesis can shrink."""

    def __init__(self, seed, cap):
        self.seed, self.cap = seed, cap

    def tokens(self, group, member):
        return 1 + (self.seed + group * 7919 + member * 104_729) * 2_654_435_761 % 2**32 * self.cap // 2**32


@st.composite
def random_settings(draw):
    def engine():
        return EngineModel(
            slots=draw(st.integers(1, 6)),
            base_s=draw(st.sampled_from([0.0, 0.5, 2.0])),
            sequence_s=draw(st.sampled_from([0.1, 1.0])),
            prefill_token_s=draw(st.sampled_from([0.0, 0.25])),
            kv_tokens=draw(st.sampled_from([None, 45, 80])),
        )

    count = draw(st.integers(2, 3))
    engines = (engine(),) * count if draw(st.booleans()) else tuple(engine() for _ in range(count))
    return Setting(
        workload=Workload(
            DrawnLengths(draw(st.integers(0, 1000)), draw(st.sampled_from([1, 12, 30]))),
            prompt_tokens=draw(st.sampled_from([0, 5])),
        ),
        engines=engines,
        groups_per_batch=draw(st.integers(1, 4)),
        group_size=draw(st.integers(1, 4)),
        trainer=Trainer(
            sample_s=draw(st.sampled_from([0.0, 2.0])), fixed_s=draw(st.sampled_from([0.0, 3.0]))
        ),
        sync_s=draw(st.sampled_from([0.0, 1.5])),
    )


@settings(max_examples=150, deadline=None)
@given(setting=random_settings())
def test_no_schedule_is_faster_than_its_bounds(setting):
    split = setting.split(1)
    on_policy = [
        simulate(setting, setting.policy(), steps=3),
        *(
            simulate(
                setting,
                setting.policy(over_provision=OverProvision(groups=1, members=1, defer=defer)),
                steps=3,
            )
            for defer in (False, True)
        ),
        *(peer(setting, steps=3) for peer in (static_split, queue, longest_first, tail_rounds)),
    ]
    overlapped = [
        simulate(split, split.policy(max_staleness=1), steps=3),
        simulate(setting, setting.policy(max_staleness=1), steps=3),
        partial_rollout(setting, steps=3),
        one_step_off(split, steps=3),
        capacity(split, steps=3),
    ]
    for result in on_policy:
        assert all(step.rollout_s >= step.bound_s - 1e-6 for step in result.steps)
        assert result.step_bound_s <= result.total_s + 1e-6
    for result in [*on_policy, *overlapped]:
        assert result.work_bound_s <= result.total_s + 1e-6
        assert len(set(setting.engines)) > 1 or result.device_bound_s <= result.total_s + 1e-6
        assert sum(step.sampled_tokens for step in result.steps) >= sum(step.tokens for step in result.steps)


@settings(max_examples=100, deadline=None)
@given(setting=random_settings(), eta=st.sampled_from([1.0, 1.25, 1.5, 2.0]))
def test_a_short_round_is_not_faster_than_the_bound_with_redundancy(setting, eta):
    result = tail_rounds(setting, steps=1, eta=eta)
    prompts, size = setting.groups_per_batch, setting.group_size
    launched = setting.workload.batch(0, int(np.ceil(eta * prompts - 1e-9)), int(np.ceil(eta * size - 1e-9)))
    bound = redundant_step_bound(
        launched,
        setting.engines,
        keep_groups=prompts,
        keep_members=size,
        prompt_tokens=setting.workload.prompt_tokens,
    )
    assert bound.seconds <= result.steps[0].rollout_s + 1e-6
    assert bound.seconds <= result.steps[0].bound_s + 1e-6


def test_each_bound_of_a_step_is_reached_by_a_schedule():
    engine = EngineModel(slots=4, base_s=1.0, sequence_s=0.5)
    alone = step_bound([np.array([10])], [engine] * 2)
    assert (alone.critical_path_s, alone.seconds) == (15.0, 15.0)
    full = step_bound([np.full(8, 10)], [engine])
    assert full.work_s == 2 * 10 * (1.0 + 4 * 0.5)
    half = step_bound([np.full(4, 10)], [engine] * 2)
    assert half.work_s == 10 * (1.0 + 2 * 0.5)
    narrow = EngineModel(slots=4, base_s=1.0, sequence_s=0.5, kv_tokens=10)
    assert step_bound([np.full(4, 10)], [narrow]).kv_area_s == 4 * 55 / 10 + 40 * 0.5


def test_waiting_outside_the_engine_counts_in_the_critical_path():
    bound = step_bound([np.array([10, 4])], [ENGINE], outside_s=[np.array([0.0, 5.0])])
    assert bound.critical_path_s == pytest.approx(5.0 + 4 * 0.01005)


def test_the_critical_path_of_the_cap_is_165_seconds():
    assert step_bound([np.array([16_384])], [ENGINE] * 16).seconds == pytest.approx(164.66, abs=0.01)


def test_nothing_exceeds_what_full_batches_would_give():
    assert speedup_ceiling(rollout_share=0.7, utilisation=0.46) == pytest.approx(1.608, abs=1e-3)
    with pytest.raises(SimulationError, match=r"rollout_share=1\.2"):
        speedup_ceiling(rollout_share=1.2, utilisation=0.5)


def test_the_propositions_of_roll_flash_give_the_numbers_of_the_paper(vectors):
    case = vectors("roll_flash_bounds")["bounds"]
    params, expected = case["params"], case["expected"]
    model = FlashModel(
        workers=params["K"],
        samples=params["N"],
        mean_s=params["mu_gen"],
        longest_s=params["L_gen"],
        train_s=params["mu_train"],
        epochs=params["E"],
    )
    for alpha in params["alphas"]:
        got = {
            "per_sample_generation_bound": model.sample_bound(alpha),
            "beta_star": model.trainer_share(alpha),
            "end_to_end_bound": model.step_bound(alpha),
            "train_time_at_beta_star": model.train_step_s(alpha),
            "rollout_bound_at_1-beta_star": model.rollout_bound(alpha),
        }
        assert got == pytest.approx(expected[f"alpha={alpha}"], rel=1e-6)
    assert model.greatest_speedup == pytest.approx(expected["max_speedup_end_to_end"])
    assert model.greatest_generation_speedup == pytest.approx(expected["max_speedup_generation_K_eq_N"])


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=4, max_size=40),
    workers=st.integers(1, 6),
)
def test_a_queue_of_workers_keeps_within_proposition_1(lengths, workers):
    class Listed:
        cap = 50

        def tokens(self, group, member):
            return lengths[member]

    setting = Setting(
        workload=Workload(Listed()),
        engines=(EngineModel(slots=1, base_s=1.0, sequence_s=0.0),) * workers,
        groups_per_batch=1,
        group_size=len(lengths),
    )
    took = simulate(setting, setting.policy(), steps=1).steps[0].rollout_s
    model = FlashModel(
        workers=workers, samples=len(lengths), mean_s=float(np.mean(lengths)), longest_s=float(max(lengths))
    )
    assert took / len(lengths) <= model.sample_bound(0) + 1e-9


@pytest.mark.parametrize("fields", [{"workers": 0}, {"mean_s": 0.0}, {"longest_s": 1.0}, {"train_s": -1.0}])
def test_flash_models_that_cannot_be_are_refused(fields):
    with pytest.raises(SimulationError, match="FlashModel: got"):
        FlashModel(**{"workers": 2, "samples": 4, "mean_s": 2.0, "longest_s": 3.0, **fields})


def test_bounds_of_nothing_are_refused():
    with pytest.raises(SimulationError, match="got 0 groups"):
        step_bound([], [ENGINE])
    with pytest.raises(SimulationError, match="got 3 groups x 1"):
        redundant_step_bound(np.ones((2, 2), dtype=int), [ENGINE], keep_groups=3, keep_members=1)


def longest_of(result):
    """Tokens of the longest completion of each step."""
    size, tokens = result.setting.group_size, result.setting.workload.tokens
    return [
        max(tokens(group, member) for group in groups for member in range(size)) for groups in result.groups
    ]


@settings(max_examples=60, deadline=None)
@given(
    setting=random_settings(),
    age=st.integers(0, 3),
    train=st.sampled_from([0.0, 0.5]),
    sync=st.integers(0, 2),
)
def test_no_run_with_a_bound_on_staleness_is_below_its_bound(setting, age, train, sync):
    trainer = Trainer(sample_s=train, fixed_s=0.5, devices=1 if age else 0)
    setting = replace(setting, trainer=trainer, sync_s=float(sync))
    result = simulate(setting, setting.policy(max_staleness=age), steps=6)
    assert result.total_s >= staleness_bound(setting, longest_of(result), max_staleness=age) - 1e-6


def test_the_bound_of_staleness_is_the_sum_over_every_so_many_steps():
    setting = Setting(
        workload=Workload(DrawnLengths(0, 9)),
        engines=(ENGINE,),
        groups_per_batch=1,
        group_size=1,
        trainer=Trainer(fixed_s=1.0),
        sync_s=2.0,
    )
    longest = [1000, 2000, 1000, 3000, 1000]
    token_s = ENGINE.iteration_s(1)
    assert staleness_bound(setting, longest, max_staleness=0) == pytest.approx(8000 * token_s + 15)
    assert staleness_bound(setting, longest, max_staleness=1) == pytest.approx(5000 * token_s + 6)
    assert staleness_bound(setting, longest, max_staleness=9) == pytest.approx(3000 * token_s + 3)
    assert staleness_bound(setting, [], max_staleness=1) == 0
    with pytest.raises(SimulationError, match="max_staleness -1"):
        staleness_bound(setting, longest, max_staleness=-1)
