"""A policy is checked when it is made."""

import pytest
from roll_scheduler import (
    AdaptiveDeadline,
    MeanOutside,
    MostUncertain,
    OverProvision,
    PartialRollouts,
    SchedulerError,
    SchedulerPolicy,
    ZeroSpread,
)


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
        ("filters", (ZeroSpread,)),
        ("filters", ZeroSpread()),
        ("batch_filter", MostUncertain),
        ("generate_deadline_s", float("inf")),
        ("grade_deadline_s", True),
        ("max_staleness", 1e308),
        ("kv_tokens", 0),
        ("kv_tokens", float("nan")),
        ("kv_tokens", True),
        ("weigh_health", "no"),
        ("partial", True),
        ("adaptive_grading", 3),
        ("over_provision", {"groups": 1}),
        ("concurrency", None),
        ("concurrency", {"shop": 1.5}),
    ],
)
def test_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(SchedulerError, match=rf"SchedulerPolicy\.{field}.*allowed is"):
        policy(**{field: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OverProvision(groups=1, defer="no"), r"OverProvision\.defer: got 'no'"),
        (lambda: OverProvision(groups=1, adaptive=1), r"OverProvision\.adaptive: got 1"),
        (lambda: PartialRollouts(stop_at_cut="no"), r"PartialRollouts\.stop_at_cut: got 'no'"),
        (lambda: PartialRollouts(stop_deadline_s=float("inf")), r"stop_deadline_s: got inf, .* finite"),
        (lambda: AdaptiveDeadline(least_s="2"), r"AdaptiveDeadline\.least_s: got '2', .* number > 0"),
        (lambda: AdaptiveDeadline(factor=True), r"AdaptiveDeadline\.factor: got True, .* number >= 1"),
        (lambda: MeanOutside(1.0, 0.0), r"MeanOutside: got low=1\.0, high=0\.0, allowed is low < high"),
        (lambda: MeanOutside(float("nan"), 1.0), r"MeanOutside: got low=nan"),
        (lambda: ZeroSpread(float("nan")), r"ZeroSpread\.tolerance: got nan, allowed is a number >= 0"),
        (lambda: ZeroSpread(-1.0), r"ZeroSpread\.tolerance: got -1\.0"),
    ],
)
def test_a_part_of_it_that_is_out_of_range_is_refused(make, message):
    with pytest.raises(SchedulerError, match=message):
        make()


def test_a_list_of_filters_is_the_same_as_a_tuple():
    assert policy(filters=[ZeroSpread()]) == policy(filters=(ZeroSpread(),))
    assert policy(filters=[ZeroSpread()]).fingerprint() == policy(filters=(ZeroSpread(),)).fingerprint()


def test_limits_do_not_change_with_the_mapping_they_came_from():
    limits = {"shop": 1}
    made = policy(concurrency=limits)
    limits["shop"] = 0
    assert made.concurrency == {"shop": 1}


@pytest.mark.parametrize(
    ("field", "one", "other"), [("groups_per_batch", 1_000_001, 1_000_002), ("max_staleness", 0.3, 0.3000001)]
)
def test_a_fingerprint_tells_any_two_numbers_apart(field, one, other):
    assert policy(**{field: one}).fingerprint() != policy(**{field: other}).fingerprint()


@pytest.mark.parametrize("pool", [float("nan"), 4.5, 3])
def test_a_batch_filter_without_a_pool_of_at_least_a_batch_is_refused(pool):
    class Choosing:
        name = "choosing"

        def pool(self, groups_per_batch):
            return pool

        def choose(self, values, most):
            return [0]

    with pytest.raises(
        SchedulerError, match=r"SchedulerPolicy\.batch_filter\.pool: got .*, allowed is an integer"
    ):
        policy(batch_filter=Choosing())
