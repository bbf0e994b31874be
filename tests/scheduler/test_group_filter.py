"""Group filters and the conformance test that comes with their protocol."""

import numpy as np
import pytest
from roll_scheduler import GroupFilter, MeanOutside, ZeroSpread, check_filter


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
