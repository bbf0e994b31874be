"""A policy is checked when it is made."""

import pytest
from roll_scheduler import SchedulerError, SchedulerPolicy, ZeroSpread


def policy(**changes):
    return SchedulerPolicy(**{"groups_per_batch": 4, "group_size": 8, **changes})


def test_least_members_are_two_or_one_in_a_group_of_one():
    assert policy().min_members == 2
    assert policy(group_size=1).min_members == 1
    assert policy(min_members=5).min_members == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups_per_batch", 0),
        ("groups_per_batch", 2.0),
        ("group_size", 0),
        ("group_size", True),
        ("max_staleness", -1),
        ("quarantine_after", -1),
        ("stale", "keep"),
        ("batch_filter", "best"),
        ("retries", -1),
        ("min_members", 9),
        ("min_members", -1),
        ("generate_deadline_s", 0.0),
        ("generate_deadline_s", float("nan")),
        ("grade_deadline_s", "60"),
        ("max_failures", -1),
        ("max_refills", -1),
        ("filters", (ZeroSpread(), "mean")),
    ],
)
def test_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(SchedulerError, match=rf"SchedulerPolicy\.{field}.*allowed is"):
        policy(**{field: value})
