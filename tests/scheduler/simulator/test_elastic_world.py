"""Devices that change sides: hand-computed steps; nothing is lost, doubled or quicker than bounds."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roll_scheduler import OverProvision, SchedulerError
from roll_scheduler.partial import PartialRollouts
from roll_scheduler.planning.elastic import ElasticPolicy
from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    Latency,
    LognormalLengths,
    ReplicaFailure,
    Setting,
    SimulationError,
    Trainer,
    Workload,
    run_policy,
    simulate,
)

MOVES = PartialRollouts(max_versions=1000, stop_at_cut=False)
AT_ONCE = ElasticPolicy(switch_s=0.0, sequence_share=0.0)
ENGINE = EngineModel(slots=8, base_s=0.010, sequence_s=200e-6, prefill_token_s=20e-6)


def small(trace="C", *, replicas=3, seed=0, **fields):
    fields = {"trainer": Trainer(sample_s=1.5, fixed_s=0.5, switch_s=1.0), "sync_s": 0.5} | fields
    return Setting(
        workload=Workload(LognormalLengths(TRACES[trace], seed=seed), **fields.pop("workload", {})),
        engines=(ENGINE,) * replicas,
        groups_per_batch=8,
        group_size=4,
        **fields,
    )


def test_a_replica_without_work_trains_on_the_groups_that_are_complete(table_setting):
    setting = table_setting([[2], [10]], workers=2, trainer=Trainer(sample_s=4.0))
    assert simulate(setting, setting.policy(), steps=1).total_s == 10.0 + 8.0 / 2
    # Group 0 is trained on from 2 to 6 by one device, group 1 from 10 on by both.
    result = simulate(setting, setting.policy(), steps=1, elastic=AT_ONCE)
    assert result.total_s == 10.0 + 4.0 / 2
    assert result.device_s["train"] == 8.0 and result.device_s["trainer idle"] == 4.0


def test_changing_sides_costs_its_seconds(table_setting):
    setting = table_setting([[2], [10]], workers=2, trainer=Trainer(sample_s=4.0, switch_s=1.0))
    # The other device comes at 11; until then one has done 1 of the 4 seconds of group 1.
    result = simulate(
        setting, setting.policy(), steps=2, elastic=ElasticPolicy(switch_s=1.0, sequence_share=0.0)
    )
    first, second = result.steps
    assert first.step_s == 11.0 + 3.0 / 2
    assert second.step_s == 1.0 + first.step_s
    assert simulate(setting, setting.policy(), steps=1).total_s == 10.0 + 2 * 1.0 + 4.0


def test_what_moves_keeps_its_tokens_and_has_its_kv_computed_again(table_setting):
    engine = EngineModel(slots=2, base_s=1.0, sequence_s=0.0, prefill_token_s=0.5)
    setting = table_setting([[3], [3], [9], [9]], workers=2, engine=engine, trainer=Trainer(sample_s=100.0))
    kept = simulate(setting, setting.policy(partial=MOVES), steps=1, elastic=AT_ONCE).steps[0]
    assert (kept.sampled_tokens, kept.aborted_tokens, kept.recomputed_tokens) == (24, 0, 3)
    assert kept.rollout_s == 9 + 3 * 0.5
    lost = simulate(setting, setting.policy(), steps=1, elastic=AT_ONCE).steps[0]
    assert (lost.sampled_tokens, lost.aborted_tokens, lost.recomputed_tokens) == (27, 3, 0)


def test_the_step_is_the_same_and_shorter():
    setting = small()
    plain = simulate(setting, setting.policy(), steps=4)
    result = simulate(setting, setting.policy(partial=MOVES), steps=4, elastic=ElasticPolicy(switch_s=1.0))
    assert result.groups == plain.groups
    assert [step.tokens for step in result.steps] == [step.tokens for step in plain.steps]
    assert [step.sampled_tokens for step in result.steps] == [step.tokens for step in plain.steps]
    assert result.total_s < 0.9 * plain.total_s


@settings(max_examples=30, deadline=None)
@example(
    staleness=0,
    trace="B",
    seed=1,
    switch_s=0.0,
    order="fifo",
    extra=2,
    partial=None,
    reward_s=3.0,
    dies=False,
)
@given(
    staleness=st.integers(0, 2),
    trace=st.sampled_from("ABCD"),
    seed=st.integers(0, 50),
    switch_s=st.sampled_from([0.0, 0.5, 4.0]),
    order=st.sampled_from(["fifo", "longest_first"]),
    extra=st.sampled_from([0, 2]),
    partial=st.sampled_from([None, MOVES]),
    reward_s=st.sampled_from([0.0, 3.0]),
    dies=st.booleans(),
)
def test_no_prompt_is_lost_and_devices_do_one_thing_at_a_time(
    staleness, trace, seed, switch_s, order, extra, partial, reward_s, dies
):
    setting = small(
        trace,
        seed=seed,
        trainer=Trainer(sample_s=1.5, fixed_s=0.5, switch_s=switch_s),
        workload={"reward": Latency(mean_s=reward_s)},
        failures=(ReplicaFailure(replica=1, at_s=30.0, back_s=90.0),) if dies else (),
    )
    policy = setting.policy(
        max_staleness=staleness,
        order=order,
        partial=partial,
        over_provision=OverProvision(groups=extra, members=1, defer=staleness == 0) if extra else None,
        max_refills=1000,
    )
    elastic = ElasticPolicy(switch_s=switch_s, sequence_share=0.02)
    result = simulate(setting, policy, steps=5, groups=30, elastic=elastic)
    trained = Counter(group for groups in result.groups for group in groups)
    assert set(trained.values()) == {1}
    assert max(result.staleness) <= staleness
    assert sum(result.device_s.values()) == pytest.approx(3 * result.total_s)
    slack = ENGINE.iteration_s(8) * 3
    assert min(result.device_s.values()) >= -slack
    work_s = setting.trainer.sample_s * sum(step.samples for step in result.steps)
    assert result.device_s["train"] == pytest.approx(work_s)
    assert result.work_bound_s <= result.total_s + 1e-6
    assert staleness > 0 or result.step_bound_s <= result.total_s + 1e-6


def test_all_prompts_are_trained_on_when_they_are_used_up():
    setting = small()
    for staleness in (0, 1):
        policy = setting.policy(max_staleness=staleness, partial=MOVES)
        result = simulate(setting, policy, steps=99, groups=30, elastic=ElasticPolicy(switch_s=1.0))
        assert sorted(group for groups in result.groups for group in groups) == list(range(30))


def test_the_same_call_gives_the_same_result():
    setting = small()
    first, second = (
        run_policy("core-elastic-async", setting, steps=4, trainer_devices=1, record_spans=spans)
        for spans in (False, True)
    )
    assert first.steps == second.steps and second.spans


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["A", "B", "C", "D"])
def test_it_is_faster_than_the_recreated_rollpacker_without_stopping_completions(trace):
    prompts, size, static_s = (128, 8, 152) if trace == "D" else (256, 16, 245)
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES[trace], seed=3)),
        engines=(EngineModel(slots=64, base_s=0.010, sequence_s=50e-6),) * 16,
        groups_per_batch=prompts,
        group_size=size,
        trainer=Trainer(sample_s=3 / 7 * static_s * 16 / (prompts * size), switch_s=2.0),
    )
    steps, extra = (14, 0.08) if trace in "CD" else (3, 0.0)
    if trace == "C":
        steps = 3
    ours = run_policy("core-elastic", setting, steps=steps, trainer_devices=8, value=extra)
    theirs = run_policy("rollpacker", setting, steps=10 if trace == "D" else 5, trainer_devices=8)
    assert ours.summary()["samples_per_s"] > 1.03 * theirs.summary()["samples_per_s"]


def test_a_trainer_with_devices_of_its_own_is_refused():
    setting = small().split(1)
    with pytest.raises(SimulationError, match="elastic with 1 devices of the trainer's own"):
        simulate(setting, setting.policy(), steps=1, elastic=ElasticPolicy())


def test_losing_every_replica_ends_with_an_error():
    setting = small(failures=tuple(ReplicaFailure(replica=index, at_s=5.0) for index in range(3)))
    with pytest.raises(SchedulerError, match=r"no replica is left|nothing can happen"):
        simulate(setting, setting.policy(partial=MOVES), steps=3, elastic=ElasticPolicy(switch_s=1.0))
