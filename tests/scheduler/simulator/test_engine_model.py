"""The event-driven replica does what one that counts iterations does."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler.simulator import EngineModel, SimulationError
from roll_scheduler.simulator.engine_model import Replica, Sequence
from roll_scheduler.simulator.fleet import Fleet


def run_to_end(fleet):
    ends = {}
    while (now := fleet.next_at()) < math.inf:
        for _, sequence in fleet.advance(now):
            ends[sequence.key] = now
    return ends


def replica_of(model, sequences):
    fleet = Fleet([model])
    for sequence in sequences:
        fleet.submit(0, sequence, 0.0)
    return fleet, run_to_end(fleet)


def counted(model, arrivals):
    """Ends of sequences by an engine that runs one iteration after the other. arrivals: (time, key, ...)"""
    waiting, active, ends, now = [], [], {}, 0.0
    arrivals = sorted(arrivals)
    limit = math.inf if model.kv_tokens is None else model.kv_tokens

    def kv():
        prompts = {group: prompt for _, group, prompt, _, _ in active}
        return sum(done for *_, done in active) + sum(prompts.values())

    while arrivals or waiting or active:
        if not active and not waiting:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now + 1e-9:
            waiting.append([*arrivals.pop(0)[1:], 0])
        while waiting and len(active) < model.slots:
            _, group, prompt, _, done = waiting[0]
            shared = any(each[1] == group for each in active) and prompt
            needed = done + (0 if shared else prompt)
            if active and kv() + needed + len(active) + 1 > limit * (1 - model.kv_reserve):
                break
            active.append(waiting.pop(0))
            now += needed * model.prefill_token_s
        now += model.base_s + len(active) * model.sequence_s
        for each in active:
            each[4] += 1
        for each in [each for each in active if each[4] == each[3]]:
            ends[each[0]] = now
            active.remove(each)
        while active and kv() + len(active) > limit:
            waiting.insert(0, active.pop())
    return ends


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_it_ends_sequences_when_an_engine_that_counts_iterations_does(data):
    limited = data.draw(st.booleans())
    model = EngineModel(
        slots=data.draw(st.integers(1, 4)),
        base_s=1.0,
        sequence_s=0.25,
        prefill_token_s=data.draw(st.sampled_from([0.0, 0.125])),
        kv_tokens=data.draw(st.integers(24, 60)) if limited else None,
        kv_reserve=data.draw(st.sampled_from([0.0, 0.1])),
    )
    prompt = data.draw(st.integers(0, 6))
    sequence = st.tuples(st.integers(0, 2), st.integers(1, 15))
    chosen = data.draw(st.lists(sequence, min_size=1, max_size=10))
    fleet = Fleet([model])
    for key, (group, tokens) in enumerate(chosen):
        fleet.submit(0, Sequence(key, group=group, tokens=tokens, prompt=prompt), 0.0)
    arrivals = [(0.0, key, group, prompt, tokens) for key, (group, tokens) in enumerate(chosen)]
    assert run_to_end(fleet) == pytest.approx(counted(model, arrivals))


@settings(max_examples=200, deadline=None)
@given(
    slots=st.integers(1, 3),
    chosen=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=10),
)
def test_what_arrives_during_an_iteration_starts_at_its_end(slots, chosen):
    model = EngineModel(slots=slots, base_s=1.0, sequence_s=0.25)
    fleet, ends = Fleet([model]), {}
    chosen = sorted(chosen)
    for key, (at, tokens) in enumerate(chosen):
        while fleet.next_at() <= at:
            now = fleet.next_at()
            ends |= {sequence.key: now for _, sequence in fleet.advance(now)}
        fleet.submit(0, Sequence(key, group=key, tokens=tokens), at)
    ends |= run_to_end(fleet)
    arrivals = [(float(at), key, key, 0, tokens) for key, (at, tokens) in enumerate(chosen)]
    assert ends == pytest.approx(counted(model, arrivals))


def test_an_iteration_costs_more_with_more_sequences():
    model = EngineModel(slots=8, base_s=0.010, sequence_s=50e-6)
    _, alone = replica_of(model, [Sequence(0, group=0, tokens=100)])
    _, together = replica_of(model, [Sequence(key, group=0, tokens=100) for key in range(8)])
    assert alone == {0: pytest.approx(100 * 0.01005)}
    assert together[7] == pytest.approx(100 * 0.0104)


def test_the_prompt_of_a_group_is_prefilled_and_kept_once():
    model = EngineModel(slots=4, base_s=1.0, sequence_s=0.0, prefill_token_s=0.5, kv_tokens=20)
    fleet, ends = replica_of(model, [Sequence(key, group=0, tokens=4, prompt=4) for key in range(4)])
    assert ends == {key: 6.0 for key in range(4)}
    assert fleet.usage(6.0).prefilled == 4
    assert fleet.usage(6.0).preemptions == 0


def test_without_room_the_last_to_start_is_preempted_and_computed_again():
    model = EngineModel(
        slots=2, base_s=1.0, sequence_s=0.0, kv_tokens=10, kv_reserve=0.0, prefill_token_s=0.1
    )
    fleet, ends = replica_of(model, [Sequence(key, group=key, tokens=8) for key in range(2)])
    usage = fleet.usage(20.0)
    assert ends == {0: 8.0, 1: pytest.approx(8.0 + 0.5 + 3.0)}
    assert (usage.preemptions, usage.recomputed, usage.tokens) == (1, 5, 16)


def test_a_sequence_that_can_never_fit_is_refused():
    replica = Replica(EngineModel(slots=2, base_s=1.0, sequence_s=0.0, kv_tokens=10))
    with pytest.raises(SimulationError, match=r"needs KV for 4 \+ 7 tokens, a replica has room for 10"):
        replica.submit(Sequence(0, group=0, tokens=7, prompt=4), 0.0)


def test_removing_a_sequence_frees_its_slot_and_keeps_its_tokens():
    fleet = Fleet([EngineModel(slots=1, base_s=1.0, sequence_s=0.0)])
    first, second = Sequence(0, group=0, tokens=10), Sequence(1, group=1, tokens=2)
    for sequence in (first, second):
        fleet.submit(0, sequence, 0.0)
    assert fleet.remove(0, first, 3.5) == 4
    assert run_to_end(fleet) == {1: 6.0}
    assert fleet.remove(0, second, 6.0) == 2


def test_a_stopped_sequence_goes_on_elsewhere_after_a_prefill_of_what_it_has():
    model = EngineModel(slots=1, base_s=1.0, sequence_s=0.0, prefill_token_s=0.5)
    fleet = Fleet([model, model])
    sequence = Sequence(0, group=0, tokens=10)
    fleet.submit(0, sequence, 0.0)
    fleet.remove(0, sequence, 4.0)
    fleet.submit(1, sequence, 4.0)
    assert run_to_end(fleet) == {0: 4.0 + 2.0 + 6.0}


def test_a_sequence_that_has_moved_leaves_nothing_behind():
    model = EngineModel(slots=2, base_s=1.0, sequence_s=0.0)
    fleet = Fleet([model, model])
    moving, staying = Sequence(0, group=0, tokens=4), Sequence(1, group=1, tokens=9)
    fleet.submit(0, moving, 0.0)
    fleet.submit(0, staying, 0.0)
    fleet.remove(0, moving, 2.0)
    fleet.submit(1, moving, 2.0)
    assert run_to_end(fleet) == {0: 4.0, 1: 9.0}


def test_a_weight_sync_holds_everything_up_and_may_cost_the_kv():
    for recomputes, end in ((False, 13.0), (True, 15.0)):
        model = EngineModel(
            slots=1, base_s=1.0, sequence_s=0.0, prefill_token_s=0.5, sync_recomputes=recomputes
        )
        fleet = Fleet([model])
        fleet.submit(0, Sequence(0, group=0, tokens=10), 0.0)
        assert fleet.stall(3.5, 3.0, sync=True) == 7.0
        assert run_to_end(fleet) == {0: end}


def test_a_weight_sync_begins_when_the_last_replica_has_ended_its_iteration():
    fleet = Fleet([EngineModel(slots=1, base_s=base, sequence_s=0.0) for base in (1.0, 4.0)])
    for index in range(2):
        fleet.submit(index, Sequence(index, group=index, tokens=3), 0.0)
    assert fleet.stall(1.5, 2.0) == 6.0
    assert run_to_end(fleet) == {0: 7.0, 1: 14.0}
    assert fleet.usage(14.0).stalled_s == 4.0 + 2.0


def test_usage_says_how_many_slots_were_busy():
    fleet, _ = replica_of(
        EngineModel(slots=4, base_s=1.0, sequence_s=0.0),
        [Sequence(0, group=0, tokens=2), Sequence(1, group=1, tokens=6)],
    )
    usage = fleet.usage(6.0)
    assert (usage.slot_s, usage.busy_s, usage.tokens) == (8.0, 6.0, 8)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"slots": 0}, "slots: got 0, allowed is >= 1"),
        ({"base_s": -1.0}, "base_s: got -1.0"),
        ({"base_s": 0.0, "sequence_s": 0.0}, "both 0"),
        ({"kv_tokens": 0}, "kv_tokens: got 0, allowed is >= 1"),
        ({"kv_reserve": 1.5}, "kv_reserve: got 1.5, allowed is 0 to 1"),
    ],
)
def test_engines_that_cannot_be_are_refused(fields, says):
    with pytest.raises(SimulationError, match=says):
        EngineModel(**{"slots": 1, "base_s": 1.0, "sequence_s": 0.0, **fields})
