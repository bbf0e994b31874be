"""Group filters and the conformance test that comes with their protocol."""

import numpy as np
import pytest
from roll_scheduler import (
    GroupFilter,
    MeanOutside,
    SchedulerError,
    StarvationError,
    TruncatedShare,
    ZeroSpread,
    check_filter,
)


def keeps(group_filter, *values):
    return group_filter.keep(np.array(values), np.zeros(len(values), dtype=bool))


def test_zero_spread_drops_groups_without_a_signal():
    assert not keeps(ZeroSpread(), 1.0, 1.0, 1.0)
    assert not keeps(ZeroSpread(), 0.1 + 0.2, 0.3)
    assert keeps(ZeroSpread(), 1.0, 1.0, 0.0)
    assert not keeps(ZeroSpread(tolerance=0.5), 1.0, 0.5)


def test_mean_outside_drops_what_is_too_hard_or_too_easy():
    group_filter = MeanOutside(0.0, 0.9)
    assert not keeps(group_filter, 0.0, 0.0)
    assert not keeps(group_filter, 1.0, 0.8)
    assert keeps(group_filter, 0.0, 1.0)


@pytest.mark.parametrize("group_filter", [ZeroSpread(), MeanOutside(low=0.1, high=0.9)])
def test_shipped_filters_conform(group_filter):
    assert isinstance(group_filter, GroupFilter)
    assert check_filter(group_filter) == []


class Custom:
    name = "custom"

    def __init__(self, keep):
        self.keep = keep


def sorts_in_place(values, truncated):
    values.sort()
    return True


def divides_by_zero(values, truncated):
    return 1 // 0 == 1


@pytest.mark.parametrize(
    ("keep", "finding"),
    [
        (lambda values, truncated: values.max() > 0, "not a bool"),
        (lambda values, truncated: bool(values[0] > 0.2), "depends on the order"),
        (sorts_in_place, "changed its arguments"),
        (divides_by_zero, "raised ZeroDivisionError"),
        (lambda values, truncated, seen=[]: bool(seen.append(0)) or len(seen) % 2 == 0, "then"),
    ],
)
def test_conformance_finds_what_is_wrong(keep, finding):
    assert any(finding in problem for problem in check_filter(Custom(keep)))


def test_conformance_wants_a_name():
    nameless = Custom(lambda values, truncated: True)
    nameless.name = ""
    assert check_filter(nameless) == ["name is '', not a word"]


@pytest.mark.parametrize(
    ("most", "cut", "kept"), [(0.5, 2, True), (0.5, 3, False), (0.0, 0, True), (0.0, 1, False)]
)
def test_a_group_of_which_too_much_is_truncated_is_dropped(most, cut, kept):
    truncated = np.arange(4) < cut
    assert TruncatedShare(most).keep(np.zeros(4), truncated) is kept
    assert check_filter(TruncatedShare(most)) == []


@pytest.mark.parametrize("most", [-0.1, 1.0, float("nan")])
def test_a_share_that_filters_nothing_or_makes_no_sense_is_refused(most):
    with pytest.raises(SchedulerError, match=r"TruncatedShare\.most: got .*, allowed is >= 0 and < 1"):
        TruncatedShare(most)


def test_a_starved_batch_names_each_filter_its_count_and_the_rewards_it_saw_last(core_run):
    run = core_run(
        groups_per_batch=1, group_size=2, max_refills=2, filters=(ZeroSpread(), TruncatedShare(0.5))
    )
    for group in range(3):
        run.admit()
        ids = 2 * group, 2 * group + 1
        run.generate(*ids, truncated=group == 0)
        run.grade(ids[0], value=0.25 * group)
        run.grade(ids[1], value=1.0 if group == 0 else 0.25 * group)
    with pytest.raises(StarvationError) as caught:
        run.take()
    said = str(caught.value)
    assert said.startswith(
        "3 groups were refused for one batch of 1 (filter:truncated_share 1, filter:zero_s"
    )
    assert "allowed are 2 (max_refills x groups_per_batch)" in said
    assert said.endswith("refused last: filter:truncated_share [0.0, 1.0], filter:zero_spread [0.5, 0.5]")
    assert caught.value.counts == {"filter:truncated_share": 1, "filter:zero_spread": 2}
