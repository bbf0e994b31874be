"""The scheduler's own core, in virtual time."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import (
    OverProvision,
    SchedulerError,
    StarvationError,
    ZeroSpread,
    admissible,
    may_train,
)
from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    Latency,
    LognormalLengths,
    Outcomes,
    ReplicaFailure,
    Setting,
    SimulationError,
    Trainer,
    Workload,
    queue,
    simulate,
    tail_rounds,
)

ENGINE = EngineModel(slots=8, base_s=0.010, sequence_s=50e-6)


def small(**fields):
    workload = Workload(LognormalLengths(TRACES["B"], seed=3), **fields.pop("workload", {}))
    sizes = {"groups_per_batch": 8, "group_size": 4, "trainer": Trainer(sample_s=1.0)}
    return Setting(workload=workload, engines=(ENGINE,) * 3, **{**sizes, **fields})


def test_a_queue_of_tasks_ends_with_the_longest(table_setting, vectors):
    case = vectors("roll_flash_bounds")["queue scheduling makespan"]
    durations, workers = case["inputs"]["durations"], case["params"]["K"]
    setting = table_setting([durations], workers=workers)
    result = simulate(setting, setting.policy(), steps=1)
    assert result.steps[0].rollout_s == case["expected"]["queue"]
    waves = table_setting([durations[:workers], durations[workers:]], workers=workers, groups=1)
    static = simulate(waves, waves.policy(), steps=2)
    assert static.total_s == case["expected"]["static_batches"]


def test_members_of_a_prompt_spread_over_workers(table_setting, vectors):
    case = vectors("roll_flash_bounds")["prompt replication (2 prompts x 4 responses, 4 workers)"]
    responses, expected = case["inputs"]["responses"], case["expected"]
    replicated = table_setting(responses, workers=case["params"]["K"])
    assert simulate(replicated, replicated.policy(), steps=1).total_s == expected["with_replication_queue"]
    kept_together = table_setting([[sum(row)] for row in responses], workers=case["params"]["K"])
    took = simulate(kept_together, kept_together.policy(), steps=1).total_s
    assert took == expected["without_replication_each_prompt_on_one_worker_decoded_in_sequence"]


def test_the_core_makes_the_schedule_of_a_plain_queue_to_the_last_bit():
    setting = small(sync_s=2.0)
    ours, plain = simulate(setting, setting.policy(), steps=4), queue(setting, steps=4)
    assert ours.steps == plain.steps
    assert ours.groups == plain.groups


def test_tail_rounds_of_the_core_are_those_of_the_re_created_peer_until_the_long_one():
    setting = small()
    extra = OverProvision(groups=2, members=1, defer=True)
    ours = simulate(setting, setting.policy(over_provision=extra), steps=5)
    theirs = tail_rounds(setting, steps=5, eta=1.25)
    assert ours.steps[:4] != simulate(setting, setting.policy(), steps=4).steps
    for mine, peers in zip(ours.steps[:4], theirs.steps[:4], strict=True):
        assert (mine.rollout_s, mine.tokens, mine.wasted_tokens) == pytest.approx(
            (peers.rollout_s, peers.tokens, peers.wasted_tokens)
        )
    assert ours.groups == theirs.groups


def test_the_core_keeps_what_a_published_short_round_keeps(table_setting, vectors):
    case = vectors("rollpacker_tail_batching")["one short round, eta=4/3"]
    times, expected = case["inputs"]["response_finish_times"], case["expected"]
    setting = table_setting(list(times.values()), slots=100, groups=3, size=3)
    policy = setting.policy(over_provision=OverProvision(groups=1, members=1, defer=True))
    result = simulate(setting, policy, steps=1, record_spans=True)
    kept = {(span.group, span.member) for span in result.spans if span.kept}
    names = list(times)
    assert result.total_s == expected["round_time"]
    assert kept == {
        (names.index(name), member)
        for name, members in expected["kept_response_indices"].items()
        for member in members
    }


def test_tail_rounds_train_on_every_prompt_once():
    setting = small()
    policy = setting.policy(over_provision=OverProvision(groups=2, members=1, defer=True))
    result = simulate(setting, policy, steps=100, groups=70)
    assert sorted(group for groups in result.groups for group in groups) == list(range(70))
    dropping = setting.policy(over_provision=OverProvision(groups=2, members=1))
    partial = simulate(setting, dropping, steps=100, groups=70)
    assert sum(map(len, partial.groups)) < 70
    assert partial.steps[0].left_out_tokens_mean > partial.steps[0].kept_tokens_mean


def test_a_step_is_rollout_then_training_then_sync(table_setting):
    setting = table_setting([[3, 5]], workers=2, trainer=Trainer(sample_s=4.0, fixed_s=1.0), sync_s=2.0)
    result = simulate(setting, setting.policy(), steps=2)
    first, second = result.steps
    assert (first.rollout_s, first.train_start_s, first.train_s, first.step_s) == (5.0, 5.0, 5.0, 12.0)
    assert (second.start_s, second.rollout_s, result.total_s) == (12.0, 5.0, 24.0)
    assert (first.slot_utilisation, first.bound_s, first.work_s) == (0.8, 5.0, 4.0)
    assert result.groups == ((0,), (1,))


def test_a_disjoint_trainer_overlaps_with_generation(table_setting):
    setting = table_setting([[4]], workers=2, trainer=Trainer(sample_s=4.0)).split(1)
    result = simulate(setting, setting.policy(max_staleness=1), steps=4)
    assert [step.step_s for step in result.steps] == [8.0, 4.0, 4.0, 4.0]
    assert result.staleness == {0: 1, 1: 3}


@settings(max_examples=60, deadline=None)
@given(
    bound=st.integers(0, 3),
    seed=st.integers(0, 50),
    colocated=st.booleans(),
    sync_s=st.sampled_from([0.0, 3.0]),
)
def test_no_sample_is_trained_on_that_is_too_old_or_twice(bound, seed, colocated, sync_s):
    workload = Workload(LognormalLengths(TRACES["C"], seed=seed))
    setting = Setting(
        workload=workload,
        engines=(ENGINE,) * 2,
        groups_per_batch=3,
        group_size=4,
        trainer=Trainer(sample_s=5.0, devices=0 if colocated else 1),
        sync_s=sync_s,
    )
    result = simulate(setting, setting.policy(max_staleness=bound, max_refills=1000), steps=6)
    assert max(result.staleness) <= bound
    trained = Counter(group for groups in result.groups for group in groups)
    assert set(trained.values()) == {1} and len(trained) == 18


def test_the_staleness_window_is_the_published_one(vectors):
    cases = vectors("staleness_window")
    for name in ("alpha=2 at version 10", "alpha=0 is synchronous"):
        case = cases[name]
        assert [
            may_train(
                version=case["inputs"]["current_version"],
                oldest_version=version,
                max_staleness=case["params"]["alpha"],
            )
            for version in case["inputs"]["start_versions"]
        ] == case["expected"]["keep"]
    case = cases["buffer size"]
    room = admissible(
        groups_per_batch=case["inputs"]["N"], max_staleness=case["params"]["alpha"], outstanding=0
    )
    assert room == case["expected"]["max_samples"]


def test_tickets_of_a_replica_that_dies_are_generated_elsewhere():
    setting = small(failures=(ReplicaFailure(replica=1, at_s=5.0, back_s=20.0),))
    result, calm = (simulate(each, each.policy(), steps=2) for each in (setting, small()))
    assert result.groups == calm.groups
    assert result.steps[0].aborted_tokens > 0 and calm.steps[0].aborted_tokens == 0
    assert result.steps[0].left_out_tokens_mean == 0
    assert result.total_s > calm.total_s


def test_losing_every_replica_ends_with_the_error_of_the_core():
    dead = tuple(ReplicaFailure(replica=index, at_s=5.0 + index) for index in range(3))
    setting = small(failures=dead)
    with pytest.raises(SchedulerError, match=r"no replica is left and \d+ tickets wait"):
        simulate(setting, setting.policy(), steps=1)


def test_filtered_groups_are_counted_as_waste_and_replaced():
    setting = small(workload={"outcomes": Outcomes(never=0.3, always=0.2)})
    result = simulate(setting, setting.policy(filters=(ZeroSpread(),)), steps=3)
    assert all(step.samples == 32 for step in result.steps)
    assert sum(step.wasted_tokens for step in result.steps) > 0
    assert sum(step.aborted_tokens for step in result.steps) == 0
    hopeless = small(workload={"outcomes": Outcomes(never=1.0)})
    with pytest.raises(StarvationError, match="filter:zero_spread"):
        simulate(hopeless, hopeless.policy(filters=(ZeroSpread(),)), steps=1)


def test_grading_and_environments_take_time_but_no_slots(table_setting):
    graded = table_setting([[3, 5]], workers=2, workload={"reward": Latency(mean_s=4.0)})
    assert simulate(graded, graded.policy(), steps=1).total_s == 9.0
    turns = table_setting([[4, 4]], workload={"turns": 2, "environment": Latency(mean_s=2.0)})
    result = simulate(turns, turns.policy(), steps=1, slots=2)
    assert result.total_s == 2.0 + 2.0 + 2.0 + 2.0
    assert result.steps[0].bound_s == 8.0


def test_a_deadline_that_is_missed_costs_the_tokens_and_a_retry(table_setting):
    setting = table_setting([[3, 8], [2, 2]], workers=4)
    policy = setting.policy(generate_deadline_s=5.0, min_members=1)
    result = simulate(setting, policy, steps=1)
    assert result.steps[0].samples == 3
    assert result.steps[0].aborted_tokens == 10


def test_slots_of_the_scheduler_may_be_more_than_the_engine_has(table_setting):
    setting = table_setting([[1, 2, 3, 4]], workers=2)
    deep = simulate(setting, setting.policy(), steps=1, slots=4)
    assert (deep.total_s, simulate(setting, setting.policy(), steps=1).total_s) == (6.0, 6.0)
    uneven = table_setting([[4, 1, 4, 1]], workers=2)
    assert simulate(uneven, uneven.policy(), steps=1, slots=4).total_s == 8.0
    assert simulate(uneven, uneven.policy(), steps=1).total_s == 5.0


def test_the_run_ends_when_the_prompts_are_used_up():
    setting = small()
    result = simulate(setting, setting.policy(), steps=10, groups=20)
    assert [len(groups) for groups in result.groups] == [8, 8, 4]


def test_the_same_call_gives_the_same_result():
    setting = small(workload={"reward": Latency(mean_s=1.0, std_s=0.5)}).split(1)
    policy = setting.policy(max_staleness=1)
    first, second = (simulate(setting, policy, steps=3, record_spans=spans) for spans in (False, True))
    assert first.steps == second.steps


def test_spans_tell_who_had_which_slot():
    setting = small()
    result = simulate(setting, setting.policy(), steps=2, record_spans=True)
    assert len(result.spans) == 2 * 32 and all(span.kept for span in result.spans)
    by_slot = {}
    for span in sorted(result.spans, key=lambda each: each.start):
        assert 0 <= span.slot < 8 and span.start < span.end
        assert by_slot.get((span.replica, span.slot), 0.0) <= span.start
        by_slot[span.replica, span.slot] = span.end


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"steps": 0}, "got steps=0, allowed is >= 1"),
        ({"steps": 1, "groups": 0}, "got groups=0"),
        ({"steps": 1, "slots": 0}, "got slots=0"),
    ],
)
def test_runs_of_nothing_are_refused(call, says):
    setting = small()
    with pytest.raises(SimulationError, match=says):
        simulate(setting, setting.policy(), **call)


def test_a_policy_of_another_size_is_refused():
    setting = small()
    with pytest.raises(SimulationError, match="8 of 4; allowed are equal sizes"):
        simulate(setting, setting.policy(group_size=2), steps=1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: small(sync_s=-1.0), "Setting.sync_s: got -1.0"),
        (lambda: small(groups_per_batch=0), "Setting.groups_per_batch: got 0"),
        (lambda: small(failures=(ReplicaFailure(replica=3, at_s=1.0),)), "got replica 3, allowed is 0 to 2"),
        (lambda: small().split(3), "got 3 trainer devices of 3, allowed is 1 to 2"),
        (lambda: small().split(1).split(1), "not split yet"),
        (lambda: ReplicaFailure(replica=0, at_s=2.0, back_s=1.0), "allowed is 0 < at_s < back_s"),
        (lambda: Trainer(sample_s=-1.0), "Trainer.sample_s: got -1.0"),
        (lambda: Latency(mean_s=-1.0), "Latency.mean_s: got -1.0"),
        (lambda: Outcomes(never=0.7, always=0.7), "Outcomes: got never=0.7"),
        (lambda: small(workload={"turns": 0}), "Workload.turns: got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, says):
    with pytest.raises(SimulationError, match=says):
        make()
