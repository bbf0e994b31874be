"""Choosing the groups of a batch among more of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler import (
    BatchFilter,
    MostUncertain,
    OverProvision,
    SchedulerError,
    SchedulerPolicy,
    check_batch_filter,
)

VECTOR = Path(__file__).parents[2] / "data" / "vectors" / "starpo_s_filter.json"
CASES = json.loads(VECTOR.read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_groups_of_the_largest_spread_are_kept(case):
    values = [np.array(rewards, dtype=np.float64) for rewards in case["inputs"]["rewards"]]
    assert [float(each.std()) for each in values] == pytest.approx(case["expected"]["std_ddof0"])
    kept = MostUncertain(case["params"]["p"]).choose(values, most=len(values))
    assert kept == case["expected"]["kept_prompts"]


@pytest.mark.parametrize(("share", "batch", "pool"), [(0.25, 2, 8), (0.3, 3, 10), (1.0, 5, 5), (0.4, 1, 3)])
def test_the_pool_is_the_smallest_of_which_the_share_is_a_batch(share, batch, pool):
    spread = MostUncertain(share)
    assert spread.pool(batch) == pool
    assert len(spread.choose([np.arange(2.0)] * pool, batch)) == batch


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(SchedulerError, match=r"MostUncertain\.share: got .*, allowed is > 0 and <= 1"):
        MostUncertain(share)


def test_a_batch_is_chosen_among_a_pool_and_the_rest_is_dropped_and_counted(core_run):
    case = CASES[0]
    run = core_run(groups_per_batch=2, group_size=4, batch_filter=MostUncertain(case["params"]["p"]))
    run.admit()
    assert len(run.running) == 8 * 4
    for group, rewards in enumerate(case["inputs"]["rewards"]):
        assert run.take() is None
        for member, reward in enumerate(rewards):
            run.generate(4 * group + member)
            run.grade(4 * group + member, value=float(reward))
    assert run.take() == case["expected"]["kept_prompts"]
    assert run.core.ledger.ends == {"delivered": 8, "filter:most_uncertain": 24}
    run.next_version()
    assert len(run.running) == 8 * 4


def test_the_last_pool_may_be_smaller(core_run):
    run = core_run(groups_per_batch=2, group_size=2, batch_filter=MostUncertain(0.5))
    run.do(run.core.admit(run.now))
    run.do(run.core.admit(run.now))
    run.core.exhaust()
    run.finish(0, 1)
    run.generate(2, 3)
    run.grade(2, 3, value=1.0)
    assert run.take() == [0]
    run.next_version()
    assert run.take() == []


class Choosing:
    """Chooses what it is told to."""

    name = "choosing"

    def __init__(self, *indices):
        self.indices = list(indices)

    def pool(self, groups_per_batch):
        return groups_per_batch + 1

    def choose(self, values, most):
        return self.indices


@pytest.mark.parametrize("indices", [(), (0, 0), (0, 5), (0, 1, 2)])
def test_a_choice_that_is_none_is_an_error(core_run, indices):
    run = core_run(batch_filter=Choosing(*indices))
    run.admit()
    run.finish(*range(6))
    with pytest.raises(
        SchedulerError, match=r"batch filter 'choosing' chose .* of 3 groups, allowed are 1 to 2"
    ):
        run.take()


@pytest.mark.parametrize("excludes", [{"max_staleness": 1}, {"over_provision": OverProvision(groups=1)}])
def test_a_choice_by_age_or_speed_excludes_one_by_rewards(excludes):
    with pytest.raises(SchedulerError, match=r"batch_filter: got MostUncertain.* allowed is none with"):
        SchedulerPolicy(groups_per_batch=2, group_size=2, batch_filter=MostUncertain(0.5), **excludes)


def test_members_may_be_redundant_beside_a_batch_filter(core_run):
    run = core_run(batch_filter=MostUncertain(0.5), over_provision=OverProvision(members=1))
    run.admit()
    assert len(run.running) == 4 * 3


@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 1 / 3, 0.75, 1.0])
def test_the_shipped_filter_conforms(share):
    assert isinstance(MostUncertain(share), BatchFilter)
    assert check_batch_filter(MostUncertain(share)) == []


@pytest.mark.parametrize(
    ("indices", "said"),
    [((0, 0), "different ones that are there"), ((0,), "a whole pool has to give a full")],
)
def test_the_conformance_test_finds_what_is_wrong(indices, said):
    assert any(said in problem for problem in check_batch_filter(Choosing(*indices)))


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.1 + 5e-10, 0.1 + 2e-9, 0.5, 1.0]), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_of_equals_the_earlier_is_chosen(spreads, most):
    values = [np.array([0.0, 2 * spread]) for spread in spreads]
    left, wanted = dict(enumerate(float(each.std()) for each in values)), []
    while left and len(wanted) < most:
        wanted.append(min(index for index in left if left[index] >= max(left.values()) - 1e-9))
        del left[wanted[-1]]
    assert MostUncertain(1.0).choose(values, most) == sorted(wanted)


@pytest.mark.timeout(20)
def test_choosing_among_many_takes_no_time_to_speak_of():
    values = [np.array([0.0, number % 997]) for number in range(20_000)]
    assert len(MostUncertain(0.5).choose(values, 10_000)) == 10_000
