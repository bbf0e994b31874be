"""Re-created peers: what they do step by step, and that they reproduce measured and published figures."""

import pytest
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
    capacity,
    longest_first,
    one_step_off,
    partial_rollout,
    queue,
    speedup_ceiling,
    static_split,
    tail_rounds,
)

ENGINE = EngineModel(slots=64, base_s=0.010, sequence_s=50e-6)
TOLERANCE = 0.10
"""Of figures made with other random numbers: seeds differ from each other by up to 8 %."""

MEASURED = {
    "A": {"static": 234, "queue": 228, "longest": 190, "tail": 155, "partial": 108},
    "B": {"static": 288, "queue": 267, "longest": 196, "tail": 186, "partial": 134},
    "C": {"static": 235, "queue": 222, "longest": 185, "tail": 120, "partial": 85},
}
"""Seconds of a rollout by an independent simulation of 16 engines x 64 slots, 256 prompts x 16."""


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def kept(result, step_end):
    spans = [span for span in result.spans if span.kept and span.end <= step_end]
    return {
        group: sorted(span.member for span in spans if span.group == group)
        for group in {span.group for span in spans}
    }


def test_a_short_round_keeps_the_first_and_puts_the_rest_aside(table_setting, vectors):
    case = vectors("rollpacker_tail_batching")["one short round, eta=4/3"]
    times, params, expected = case["inputs"]["response_finish_times"], case["params"], case["expected"]
    names = list(times)
    setting = table_setting(list(times.values()), slots=100, groups=params["P0"], size=params["R0"])
    result = tail_rounds(setting, steps=1, eta=params["eta"], record_spans=True)
    assert result.total_s == expected["round_time"]
    members = kept(result, result.total_s)
    assert {names[group]: found for group, found in members.items()} == expected["kept_response_indices"]
    launched = {span.group for span in result.spans}
    assert len(launched) == expected["launched_prompts"]
    assert [names[group] for group in launched - members.keys()] == expected["deferred"]
    plain = table_setting([row[:3] for row in times.values()], slots=100, groups=3)
    assert queue(plain, steps=1).total_s == expected["baseline_round_time_p1_p2_p3_first3"]


def test_redundant_environments_stop_at_the_needed_groups(table_setting, vectors):
    case = vectors("redundant_env_rollout")["need 3 groups x 2 of 4 groups x 3"]
    times, params, expected = case["inputs"]["finish_times"], case["params"], case["expected"]
    names = list(times)
    setting = table_setting(
        list(times.values()), slots=100, groups=params["groups_needed"], size=params["group_size_needed"]
    )
    result = tail_rounds(setting, steps=1, eta=4 / 3, record_spans=True)
    assert result.total_s == expected["stop_time"]
    members = kept(result, result.total_s)
    assert {names[group]: found for group, found in members.items()} == expected["kept_members"]


def test_four_short_rounds_are_followed_by_a_long_one(vectors):
    case = vectors("rollpacker_tail_batching")["round kinds, eta=1.25, P0=128"]
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES["A"])),
        engines=(EngineModel(slots=8, base_s=0.01, sequence_s=0.0),),
        groups_per_batch=8,
        group_size=2,
    )
    schedule = case["expected"]["schedule"]
    result = tail_rounds(setting, steps=len(schedule), eta=case["params"]["eta"])
    launched, kinds = 0, []
    for groups in result.groups:
        kinds.append("short" if min(groups) >= launched else "long")
        launched += 10 * (kinds[-1] == "short")
    assert kinds == schedule
    trained = sorted(group for groups in result.groups for group in groups)
    assert trained == list(range(8 * len(schedule)))


def test_the_static_split_waits_for_the_fullest_replica(table_setting):
    setting = table_setting([[1, 1], [5, 5]], workers=2)
    assert static_split(setting, steps=1).total_s == 10.0
    assert queue(setting, steps=1).total_s == 6.0
    assert longest_first(setting, steps=1).total_s == 6.0


def test_the_stream_trainer_gets_half_of_the_replicas_once_a_round(table_setting):
    trainer = Trainer(sample_s=4.0)
    setting = table_setting([[1], [1], [8], [8]], workers=2, slots=4, trainer=trainer)
    assert tail_rounds(setting, steps=1, eta=1.0).total_s == 8.0 + 16.0 / 2
    # Half is done at 1; from then on one device trains, 7 s by the end of the rollout, both the other 9.
    result = tail_rounds(setting, steps=1, eta=1.0, stream="fits")
    assert result.total_s == 8.0 + 9.0 / 2
    assert result.steps[0].rollout_s == 8.0 and result.step_bound_s <= result.total_s
    slower = Trainer(sample_s=4.0, switch_s=1.0)
    slow = table_setting([[1], [1], [8], [8]], workers=2, slots=4, trainer=slower)
    # The half is there at 2 and has done 6; the other comes at 9, when 9 are left; both go back after it.
    assert tail_rounds(slow, steps=1, eta=1.0, stream="fits").total_s == 9.0 + 9.0 / 2 + 1.0


def test_the_stream_trainer_waits_for_room_unless_it_may_queue(table_setting):
    setting = table_setting([[1], [1], [8], [8], [8], [8]], workers=2, slots=3, trainer=Trainer(sample_s=4.0))
    off, fits, queues = (
        tail_rounds(setting, steps=1, eta=1.0, stream=stream) for stream in ("off", "fits", "queues")
    )
    assert fits.total_s == off.total_s == 8.0 + 24.0 / 2
    assert queues.steps[0].rollout_s > 8.0
    assert queues.steps[0].sampled_tokens == 2 * 1 + 4 * 8


def test_partial_rollouts_go_on_with_the_tokens_they_have(table_setting):
    setting = table_setting([[2], [9]], slots=2, groups=1)
    result = partial_rollout(setting, steps=4, pool=2.0)
    assert result.groups == ((0,), (2,), (1,), (4,))
    assert [step.step_s for step in result.steps] == [2.0, 2.0, 5.0, 2.0]
    assert result.staleness == {0: 3, 2: 1}


def test_one_step_off_waits_for_the_slower_of_both(table_setting):
    setting = table_setting([[4]], workers=2, trainer=Trainer(sample_s=6.0), sync_s=1.0).split(1)
    result = one_step_off(setting, steps=3)
    assert [step.step_s for step in result.steps] == [4.0 + 6.0 + 1.0, 7.0, 7.0]
    assert result.staleness == {0: 1, 1: 2}


def test_capacity_keeps_the_engines_busy_while_training(table_setting):
    setting = table_setting([[4]], workers=2, trainer=Trainer(sample_s=4.0)).split(1)
    result = capacity(setting, steps=4, staleness=1)
    assert [step.step_s for step in result.steps] == [8.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("trace", ["A", slow("B"), slow("C")])
def test_the_peers_reproduce_the_measured_rollout_times(trace):
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES[trace], seed=0)),
        engines=(ENGINE,) * 16,
        groups_per_batch=256,
        group_size=16,
    )
    found = {
        "static": static_split(setting, steps=4),
        "queue": queue(setting, steps=4),
        "longest": longest_first(setting, steps=4),
        "tail": tail_rounds(setting, steps=5),
        "partial": partial_rollout(setting, steps=5),
    }
    seconds = {name: result.summary()["rollout_s"] for name, result in found.items()}
    assert seconds == pytest.approx(MEASURED[trace], rel=TOLERANCE)
    assert seconds["static"] > seconds["queue"] > max(seconds["longest"], seconds["tail"])
    assert min(seconds["longest"], seconds["tail"]) > seconds["partial"]


@pytest.mark.parametrize(("trace", "static_s"), [("A", 234), slow("B", 288), slow("C", 235)])
def test_overlap_reaches_what_the_measured_table_says_of_it(trace, static_s):
    """Half of the engines' devices train, 30 % of the static step: 1.55 to 1.67 times faster in the limit."""
    whole = Setting(
        workload=Workload(LognormalLengths(TRACES[trace], seed=0)),
        engines=(ENGINE,) * 16,
        groups_per_batch=256,
        group_size=16,
        trainer=Trainer(sample_s=3 / 7 * static_s * 16 / 4096),
    )
    result = capacity(whole.split(8), steps=6, staleness=4)
    late = sum(step.step_s for step in result.steps[2:]) / 4
    assert 1.55 * 0.95 <= static_s / 0.7 / late <= 1.67 * 1.05
    # f and rho of the static step give the ceiling that nothing on the same devices exceeds.
    rollouts = static_split(whole, steps=2).steps
    rho = sum(step.work_s for step in rollouts) / sum(step.rollout_s for step in rollouts)
    assert static_s / 0.7 / late <= speedup_ceiling(rollout_share=0.7, utilisation=rho) * (1 + TOLERANCE)


def test_tail_rounds_gain_about_what_rollpacker_publishes_on_lengths_like_theirs():
    """128 x 8: short rounds up to 7.8 times faster, all rounds up to 3.9; end to end 1.30, 1.48, 2.21 times.

    The 1.48 is the one of 16k tokens. Here it is 1.84: their engines lose time to KV and prefill in short
    rounds, and to graders, which are not told in numbers that could be set.
    """
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES["D"], seed=1)),
        engines=(ENGINE,) * 16,
        groups_per_batch=128,
        group_size=8,
    )
    static = static_split(setting, steps=10).summary()["rollout_s"]
    rounds = tail_rounds(setting, steps=10).steps
    short = [step.rollout_s for index, step in enumerate(rounds) if index % 5 < 4]
    mean = sum(step.rollout_s for step in rounds) / len(rounds)
    assert 2.1 <= static / (sum(short) / len(short)) <= 7.8
    assert 2.0 <= static / mean <= 3.9
    rest = static * 0.31 / 0.69
    assert 1.30 <= (static + rest) / (mean + rest) <= 2.21


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda make: tail_rounds(make(), steps=1, eta=0.5), "eta=0.5, allowed is >= 1"),
        (lambda make: tail_rounds(make(), steps=1, stream="fits"), "with 1 replica, allowed are >= 2"),
        (lambda make: partial_rollout(make(), steps=1, pool=0.5), "pool=0.5, allowed is >= 1"),
        (lambda make: capacity(make(), steps=1), "devices of its own"),
        (lambda make: capacity(make(), steps=1, staleness=-1), "staleness=-1, allowed is >= 0"),
        (lambda make: one_step_off(make(), steps=1), "devices of its own"),
        (lambda make: queue(make(workload={"turns": 2}), steps=1), "with turns, which"),
        (lambda make: queue(make(workload={"reward": Latency(mean_s=1)}), steps=1), "with reward latency"),
        (
            lambda make: queue(make(failures=(ReplicaFailure(replica=0, at_s=1.0),)), steps=1),
            "with failures",
        ),
    ],
)
def test_what_peers_leave_out_is_refused(table_setting, call, says):
    with pytest.raises(SimulationError, match=says):
        call(lambda **fields: table_setting([[1]], **fields))
