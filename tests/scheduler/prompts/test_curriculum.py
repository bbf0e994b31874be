"""The curriculum: prompts inside the band take turns, the others are explored, nothing is forgotten."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import (
    Curriculum,
    PromptLog,
    PromptTraits,
    RolloutScheduler,
    SchedulerError,
    SchedulerPolicy,
    ZeroSpread,
)


def take(source, count):
    return [drawn.key for drawn in itertools.islice(source, count)]


def taught(rates, **options):
    """A curriculum that has seen 64 completions of each prompt."""
    curriculum = Curriculum(range(len(rates)), **{"low": 0.2, "high": 0.8, **options})
    for index, rate in enumerate(rates):
        curriculum.observe(str(index), rate, weight=64)
    return curriculum


def test_prompts_inside_the_band_take_turns():
    assert take(taught([0.0, 0.5, 1.0, 0.3, 0.7], explore=0.0), 6) == ["1", "3", "4"] * 2


def test_the_share_that_explores_is_exact_and_goes_through_all_others():
    drawn = Counter(take(taught([0.0] * 8 + [0.5] * 8, explore=0.25), 64))
    assert [drawn[str(index)] for index in range(16)] == [2] * 8 + [6] * 8


def test_prompts_that_were_never_tried_and_those_outside_are_explored_in_turn():
    curriculum = Curriculum(range(8), low=0.4, high=0.6, explore=1.0, keys=list("abcdefgh"))
    tried = take(curriculum, 4)
    for key in tried:
        curriculum.observe(key, 0.0, weight=8)
    assert curriculum.counts() == {"unseen": 4, "inside": 0, "outside": 4}
    drawn = take(curriculum, 8)
    assert drawn[1::2] == tried or drawn[0::2] == tried
    assert len(set(drawn)) == 8


def test_a_prompt_that_became_easier_comes_into_the_band():
    curriculum = taught([0.0, 0.5])
    for _ in range(4):
        curriculum.observe("0", 0.6, weight=8)
    assert curriculum.pass_rate("0") == pytest.approx(9 / 19, abs=0.02)
    assert curriculum.counts() == {"unseen": 0, "inside": 2, "outside": 0}


def test_it_trains_on_more_that_carries_a_signal_than_drawing_evenly_does():
    """Groups of eight whose completions pass independently; a signal is a group with both kinds."""
    rng = random.Random(5)
    rates = [rng.choice((0.0, 0.0, 1.0, 1.0, 0.5)) for _ in range(300)]

    def signals(keys, observe):
        found = 0
        for key in keys:
            passed = sum(rng.random() < rates[int(key)] for _ in range(8))
            found += 0 < passed < 8
            observe(key, passed / 8, 8)
        return found

    curriculum = Curriculum(range(300), explore=0.2)
    by_band = signals((next(curriculum).key for _ in range(1500)), curriculum.observe)
    evenly = signals((str(index % 300) for index in range(1500)), lambda *_: None)
    assert by_band > 2.5 * evenly


def test_between_two_draws_of_a_prompt_others_come():
    keys = take(taught([0.5, 0.5] + [0.0] * 20, explore=0.0, gap=5), 60)
    last = {}
    for place, key in enumerate(keys):
        assert place - last.get(key, -99) > 5
        last[key] = place


def test_with_fewer_prompts_than_the_gap_it_goes_on_all_the_same():
    assert set(take(taught([0.5, 0.5], gap=10), 20)) == {"0", "1"}


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from((0.0, 0.25, 0.5, 1.0)), st.integers(0, 3)), max_size=30
    ),
    st.sampled_from((0, 3)),
)
def test_it_goes_on_where_it_was(steps, gap):
    def new():
        return Curriculum(range(12), explore=0.3, gap=gap, seed=2)

    first, second = new(), new()
    for key, value, draws in steps:
        take(first, draws)
        first.observe(str(key), value, weight=4)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.counts() == first.counts()
    assert take(second, 40) == take(first, 40)
    assert sum(first.counts().values()) == 12


@pytest.mark.parametrize("wrong", [{}, {"format": 1, "prompts": 2}, {"format": 1, "prompts": 3}])
def test_what_is_no_state_is_refused_and_changes_nothing(wrong):
    curriculum = taught([0.5, 0.0])
    before = curriculum.state()
    with pytest.raises(SchedulerError, match=r"Curriculum.restore: got"):
        curriculum.restore(wrong)
    assert curriculum.state() == before


def test_a_state_with_another_prompt_changes_nothing():
    curriculum = taught([0.5, 0.0])
    before = curriculum.state()
    with pytest.raises(SchedulerError, match=r"got key 'x', which no prompt has"):
        curriculum.restore({**before, "inside": ["x"]})
    assert curriculum.state() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Curriculum([]), r"Curriculum: got 0 prompts"),
        (lambda: Curriculum("ab", keys=["x", "x"]), r"got 2 prompts and 1 different keys"),
        (lambda: Curriculum("ab", low=0.5, high=0.4), r"got low=0.5, high=0.4"),
        (lambda: Curriculum("ab", explore=1.5), r"Curriculum.explore: got 1.5, allowed is 0 to 1"),
        (lambda: Curriculum("ab", prior_weight=0), r"Curriculum.prior_weight: got 0"),
        (lambda: Curriculum("ab").observe("9", 1), r"Curriculum.observe: got key '9', which no prompt has"),
        (lambda: Curriculum("ab").observe("1", 1.5), r"got value 1.5 and weight 1.0 for '1'"),
        (lambda: Curriculum("ab").observe("1", float("nan")), r"got value nan"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()


async def test_the_scheduler_tells_a_curriculum_also_of_the_groups_that_a_filter_refused(work):
    """Prompt 0 always fails and prompt 1 always passes, which a batch never shows."""
    rates = {"0": 0.0, "1": 1.0, "2": 0.5, "3": 0.25}
    curriculum = Curriculum([f"p{key}" for key in rates], explore=0.5, gap=0)
    log = PromptLog(curriculum)
    work.seconds = lambda ticket: 0.0
    keys = {}
    work.values = lambda ticket: float(ticket.member < 4 * rates[keys[ticket.group]])

    def traits(drawn):
        keys[len(keys)] = drawn.key
        return PromptTraits(key=drawn.key)

    scheduler = RolloutScheduler(
        prompts=log,
        generate=work.generate,
        grade=work.grade,
        replicas={"a": 100},
        policy=SchedulerPolicy(groups_per_batch=2, group_size=4, filters=(ZeroSpread(),)),
        traits=traits,
        observe=lambda drawn, values: log.observe(drawn.key, sum(values) / len(values), len(values)),
        parts={"prompts": log},
    )
    async with scheduler:
        trained = []
        for version in range(1, 6):
            batch = await scheduler.next_batch()
            trained += [group.prompt.key for group in batch.groups]
            work.version = version
            scheduler.publish(version)
        snapshot = scheduler.snapshot()
    assert set(trained) <= {"2", "3"}
    assert curriculum.pass_rate("0") < 0.2 < curriculum.pass_rate("3") < 0.5 < curriculum.pass_rate("1")
    again = PromptLog(Curriculum([f"p{key}" for key in rates], explore=0.5, gap=0))
    again.restore(json.loads(json.dumps(snapshot.parts["prompts"])))
    again.rewind(snapshot.first_group)
    assert take(again, 4) == take(log, 4)


def test_rewards_of_another_library_survive_json():
    curriculum = Curriculum(["a", "b"])
    curriculum.observe("0", np.float32(0.5), weight=np.float32(4))
    assert json.loads(json.dumps(curriculum.state()))["seen"]["0"] == [2.0, 4.0]


@pytest.mark.timeout(10)
def test_a_gap_longer_than_there_are_prompts_keeps_the_turns_and_costs_nothing():
    curriculum = Curriculum(list(range(5_000)), gap=10**9)
    keys = [next(curriculum).key for _ in range(15_000)]
    assert sorted(keys[:5_000]) == sorted(keys[5_000:10_000]) == sorted(keys[10_000:])
