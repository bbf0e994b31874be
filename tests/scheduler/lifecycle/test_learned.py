"""What a core has learned survives a resume: lengths, over-provisioning, health and speed."""

import json
import math
from dataclasses import asdict

import pytest
from roll_scheduler import (
    AdaptiveOverProvision,
    OverProvision,
    ReplicaHealth,
    RoundModel,
    SchedulerError,
    SchedulerSnapshot,
    Stragglers,
)

ADAPTIVE = OverProvision(groups=4, members=4, defer=True, adaptive=True)
POLICY = {"groups_per_batch": 8, "group_size": 4, "over_provision": ADAPTIVE, "weigh_health": True}


def run_rounds(run, rounds=6):
    """Rounds with a long tail, so that over-provisioning pays."""
    for _ in range(rounds):
        run.admit()
        for ticket in sorted(run.running, key=lambda ticket: (ticket * 7919 % 31) ** 3):
            if ticket in run.running:
                run.now = max(run.now, (ticket * 7919 % 31) ** 3 / 100 + run.now)
                run.finish(ticket)
                if run.take() is not None:
                    run.next_version()
                    break


def through_json(snapshot):
    return SchedulerSnapshot(**json.loads(json.dumps(asdict(snapshot))))


def test_a_resumed_core_goes_on_with_the_factors_that_it_had(core_run):
    run = core_run(replicas={"a": 64}, **POLICY)
    run_rounds(run)
    factors = run.value("over_groups"), run.value("over_members")
    assert sum(factors) > 0
    snapshot = through_json(run.core.snapshot())
    state = snapshot.parts["scheduler"]["over_provision"]
    assert state["seen"] and (state["groups"], state["members"]) == factors
    resumed = core_run(replicas={"a": 64}, core={"resume": snapshot}, **POLICY)
    resumed.admit()
    assert sum((resumed.value("over_groups"), resumed.value("over_members"))) > 0
    fresh = core_run(replicas={"a": 64}, **POLICY)
    fresh.admit()
    assert (fresh.value("over_groups"), fresh.value("over_members")) == (0, 0)
    assert through_json(resumed.core.snapshot()).parts["scheduler"]["over_provision"]["seen"] == state["seen"]


def test_a_snapshot_before_the_first_round_keeps_what_was_restored(core_run):
    run = core_run(replicas={"a": 64}, **POLICY)
    run_rounds(run)
    parts = run.core.snapshot().parts
    from roll_scheduler import SchedulerCore, SchedulerPolicy

    snapshot = through_json(run.core.snapshot())
    again = SchedulerCore(SchedulerPolicy(**POLICY), replicas={"a": 64}, resume=snapshot).snapshot()
    assert again.parts["scheduler"]["over_provision"] == parts["scheduler"]["over_provision"]


def test_a_slow_replica_is_known_after_a_resume_and_weighs_less_at_once(core_run):
    policy = {"groups_per_batch": 4, "group_size": 4, "weigh_health": True}
    run = core_run(replicas={"slow": 64, "fast": 64}, **policy)
    for name, seconds in (("slow", 40.0), ("fast", 10.0)):
        for _ in range(9):
            run.core._queue.health.ended(name, tokens=100, seconds=seconds)
    snapshot = through_json(run.core.snapshot())
    resumed = core_run(replicas={"slow": 64, "fast": 64}, core={"resume": snapshot}, **policy)
    resumed.admit()
    where = [command.replica for command in resumed.running.values()]
    assert where.count("slow") < 0.3 * len(where)
    assert resumed.core._queue.health.rate("slow") == pytest.approx(2.5)


def test_speed_and_lengths_are_known_after_a_resume(core_run):
    policy = {"groups_per_batch": 4, "group_size": 4, "order": "longest_first", "stragglers": Stragglers()}
    run = core_run(replicas={"a": 64}, **policy)
    run.admit()
    run.now = 5.0
    run.finish(*list(run.running), tokens=50)
    snapshot = through_json(run.core.snapshot())
    assert snapshot.parts["scheduler"]["speed"] == {"tokens_s": 10.0}
    resumed = core_run(replicas={"a": 64}, core={"resume": snapshot}, **policy)
    resumed.admit()
    assert resumed.value("predicted_tokens") > 0


@pytest.mark.parametrize("parts", [{}, {"scheduler": {}}, {"scheduler": {"something newer": {"a": 1}}}])
def test_a_snapshot_without_the_parts_begins_anew(core_run, parts):
    resumed = core_run(core={"resume": SchedulerSnapshot(parts=parts)}, **POLICY)
    resumed.admit()
    assert resumed.value("over_groups") == 0


@pytest.mark.parametrize(
    "rest",
    [
        {"health": None},
        {"health": {}},
        {"health": {"longest": 1.0, "replicas": {"a": [1, 2]}}},
        {"health": {"longest": 1.0, "replicas": {"a": [1, 2.0, 0.0]}}},
        {"health": {"longest": 1.0, "replicas": {"a": [1, 0.0, math.nan]}}},
        {"health": {"longest": 1.0, "replicas": {"a": [-1, 0.0, 0.0]}}},
        {"health": {"longest": 1.0, "replicas": 3}},
        {"over_provision": {"groups": 1}},
        {"over_provision": {"groups": 1.5, "members": 0, "seen": []}},
        {"over_provision": {"groups": 1, "members": 0, "seen": [[[math.nan], []]]}},
        {"over_provision": {"groups": 1, "members": 0, "seen": [[["x"], []]]}},
        {"over_provision": 3},
    ],
)
def test_what_is_no_state_is_refused_before_anything_runs(core_run, rest):
    with pytest.raises(SchedulerError):
        core_run(core={"resume": SchedulerSnapshot(parts={"scheduler": rest})}, **POLICY)


@pytest.mark.parametrize("tokens_s", [None, -1.0, math.nan, math.inf, "3"])
def test_a_speed_that_is_none_is_refused(core_run, tokens_s):
    parts = {"scheduler": {"speed": {"tokens_s": tokens_s}}}
    with pytest.raises(SchedulerError, match="tokens_s"):
        core_run(core={"resume": SchedulerSnapshot(parts=parts)}, order="longest_first")


def test_factors_beyond_the_limits_of_now_are_not_taken_over():
    model = RoundModel(groups=8, group_size=4, slots=64)
    wide = AdaptiveOverProvision(model, limit=OverProvision(groups=8, members=4))
    wide.groups, wide.members = 2, 1
    for limit, chosen in (((8, 4), (2, 1)), ((1, 1), (0, 0))):
        again = AdaptiveOverProvision(model, limit=OverProvision(groups=limit[0], members=limit[1]))
        again.restore(json.loads(json.dumps(wide.state())))
        assert (again.groups, again.members) == chosen


def test_health_that_was_restored_goes_on_like_the_one_that_was_saved():
    one = ReplicaHealth()
    for number in range(30):
        one.ended("a" if number % 3 else "b", tokens=100 + number, seconds=9.0 + number % 5)
    one.failed("b")
    two = ReplicaHealth()
    two.restore(json.loads(json.dumps(one.state())))
    assert two.state() == one.state() and two.longest == 129
    for health in (one, two):
        health.reset("a"), health.reset("b")
        health.ended("b", tokens=10, seconds=90.0)
    assert two.weight("b") == pytest.approx(one.weight("b"))


def test_names_of_the_core_are_refused_for_the_parts_of_a_caller(run_virtual, work):
    from roll_scheduler import Curriculum, SchedulerPolicy

    async def main():
        for name in ("lengths", "scheduler"):
            with pytest.raises(SchedulerError, match=f"got the name '{name}'"):
                work.scheduler(
                    SchedulerPolicy(groups_per_batch=1, group_size=1),
                    parts={name: Curriculum(["a"], low=0.2, high=0.8)},
                )

    run_virtual(main())
