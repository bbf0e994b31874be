"""A snapshot holds all that a resume needs, survives JSON, and is refused under another configuration."""

import asyncio
import json
from dataclasses import asdict

import pytest
from roll_scheduler import (
    AdaptiveDeadline,
    MeanOutside,
    OverProvision,
    PartialRollouts,
    SchedulerCore,
    SchedulerError,
    SchedulerPolicy,
    SchedulerSnapshot,
    ZeroSpread,
    check_part,
)


def through_json(snapshot):
    return SchedulerSnapshot(**json.loads(json.dumps(asdict(snapshot))))


def policy(**changes):
    return SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, **changes})


def test_everything_survives_json(core_run):
    run = core_run(
        groups_per_batch=4,
        group_size=1,
        over_provision=OverProvision(groups=2, defer=True),
        adaptive_grading=AdaptiveDeadline(),
        order="longest_first",
    )
    run.admit()
    run.do(run.core.replica_down("a", "died", run.now))
    run.running.clear()
    run.do(run.core.replica_up("b", 100, run.now))
    run.generate(0, 1, 2, 3)
    run.now = 3.5
    run.grade(0, 1, 2, 3, value=1.0)
    run.take()
    snapshot = run.core.snapshot()
    assert snapshot.deferred == (4, 5) and snapshot.grading_anchor_s == 3.5
    assert snapshot.suspects and snapshot.parts["lengths"]
    assert through_json(snapshot) == snapshot
    again = SchedulerCore(run.policy, replicas={"a": 1}, resume=through_json(snapshot))
    assert again.snapshot() == snapshot


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_size": 3}, "group_size is 2 in the snapshot, 3 now"),
        ({"max_staleness": 0.5}, "max_staleness is 0 in the snapshot, 0.5 now"),
        (
            {"filters": (ZeroSpread(1e-3),)},
            r"filters is \(\) in the snapshot, \(ZeroSpread\(tolerance=0.001\)\) now",
        ),
        (
            {"over_provision": OverProvision(members=1)},
            "over_provision is None in the snapshot, OverProvision",
        ),
        ({"stale": "requeue"}, "stale is 'drop' in the snapshot, 'requeue' now"),
    ],
)
def test_another_configuration_is_refused_with_both_values(changes, said):
    snapshot = through_json(SchedulerCore(policy(), replicas={"a": 1}).snapshot())
    with pytest.raises(SchedulerError, match=f"resume: the snapshot is of another configuration: .*{said}"):
        SchedulerCore(policy(**changes), replicas={"a": 1}, resume=snapshot)


def test_of_partial_rollouts_all_but_the_deadline_counts():
    def core(resume=None, **parts):
        return SchedulerCore(
            policy(max_staleness=1, partial=PartialRollouts(**parts)), replicas={"a": 1}, resume=resume
        )

    snapshot = core().snapshot()
    core(snapshot, stop_deadline_s=1.0)
    with pytest.raises(
        SchedulerError, match=r"partial is max_versions=2, .* in the snapshot, max_versions=3, "
    ):
        core(snapshot, max_versions=3)


def test_another_seed_is_refused():
    snapshot = SchedulerCore(policy(), replicas={"a": 1}, run_seed=1).snapshot()
    with pytest.raises(SchedulerError, match="run_seed is 1 in the snapshot, 2 now"):
        SchedulerCore(policy(), replicas={"a": 1}, run_seed=2, resume=snapshot)


def test_patience_and_places_may_change():
    snapshot = SchedulerCore(policy(), replicas={"a": 1}).snapshot()
    patient = policy(
        retries=3, generate_deadline_s=5, max_failures=1, concurrency={"x": 1}, quarantine_after=0
    )
    SchedulerCore(patient, replicas={"b": 9, "c": 1}, resume=snapshot, tag=lambda group: "x")


def test_a_whole_number_is_the_same_as_float_and_integer():
    snapshot = SchedulerCore(policy(max_staleness=1), replicas={"a": 1}).snapshot()
    SchedulerCore(policy(max_staleness=1.0), replicas={"a": 1}, resume=snapshot)


def test_a_filter_of_ones_own_is_known_by_type_and_name():
    class Odd:
        name = "odd"

        def keep(self, values, truncated):
            return True

    snapshot = SchedulerCore(policy(filters=(Odd(),)), replicas={"a": 1}).snapshot()
    SchedulerCore(policy(filters=(Odd(),)), replicas={"a": 1}, resume=snapshot)
    with pytest.raises(SchedulerError, match=r"Odd odd.* in the snapshot, .*MeanOutside"):
        SchedulerCore(policy(filters=(MeanOutside(0, 1),)), replicas={"a": 1}, resume=snapshot)


def test_a_snapshot_from_before_there_were_fingerprints_is_taken():
    SchedulerCore(policy(), replicas={"a": 1}, resume=SchedulerSnapshot(first_group=3, format=1))


@pytest.mark.parametrize("version", [0, 3])
def test_a_format_that_is_not_known_is_refused(version):
    with pytest.raises(SchedulerError, match=f"SchedulerSnapshot.format: got {version}, allowed is 1 to 2"):
        SchedulerSnapshot(format=version)


class Counting:
    """A part with a state."""

    def __init__(self):
        self.count = 0

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def test_parts_come_back_and_their_names_are_checked(run_virtual, work):
    async def main():
        part = Counting()
        part.count = 7
        async with work.scheduler(policy(), parts={"curriculum": part}) as scheduler:
            await scheduler.next_batch()
            snapshot = through_json(scheduler.snapshot())
            part.count = 8
        assert scheduler.snapshot().parts == {"curriculum": {"count": 8}}
        restored = Counting()
        async with work.scheduler(policy(), parts={"curriculum": restored}, resume=snapshot):
            assert restored.count == 7
        for parts in ({}, {"mixture": Counting()}):
            with pytest.raises(SchedulerError, match=r"has parts \['curriculum'\], the scheduler \["):
                work.scheduler(policy(), parts=parts, resume=snapshot)
        with pytest.raises(SchedulerError, match="parts: got the name 'lengths'"):
            work.scheduler(policy(), parts={"lengths": Counting()})
        await asyncio.sleep(0)

    run_virtual(main())


def test_a_part_is_checked_by_its_conformance_test():
    part = Counting()
    assert check_part(part) == []
    part.count = {1, 2}
    assert "not JSON" in check_part(part)[0]
    part.count, part.restore = 3, lambda state: setattr(part, "count", 4)
    assert "after restore" in check_part(part)[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"first_group": 5, "deferred": (2,)},
            r"deferred: got group 2, allowed are integers from first_group",
        ),
        ({"first_group": 5, "resolved": ("7",)}, r"resolved: got group '7'"),
        ({"first_group": 5, "deferred": (7,), "resolved": (6, 7)}, r"group 7 is both resolved and deferred"),
        ({"version": 1.5}, r"version is 1\.5, allowed is an integer >= 0"),
        ({"first_group": "3"}, r"first_group is '3'"),
        ({"suspects": ((4, -1),)}, r"losses of group 4 is -1"),
    ],
)
def test_a_snapshot_that_would_lose_a_group_is_refused(fields, message):
    with pytest.raises(SchedulerError, match=f"SchedulerSnapshot.*{message}"):
        SchedulerSnapshot(**fields)


def test_mean_seconds_after_a_resume_are_those_since_then(core_run):
    run = core_run()
    run.admit()
    run.now = 10.0
    run.finish(0, 1, 2, 3)
    assert run.take() == [0, 1] and run.value("kept_s") == 10.0
    resumed = core_run(core={"resume": through_json(run.core.snapshot())})
    assert "scheduler/kept_s" not in resumed.core.metrics(0.0)
    resumed.admit()
    resumed.now = 4.0
    resumed.finish(4, 5, 6, 7)
    assert resumed.take() == [2, 3] and resumed.value("kept_s") == 4.0
    assert resumed.value("kept") == 8


def test_prompts_that_end_before_a_group_that_waits_for_its_round_are_refused(run_virtual, work):
    async def main():
        snapshot = SchedulerSnapshot(deferred=(5,), resolved=(1,))
        scheduler = work.scheduler(policy(), prompts=3, resume=snapshot)
        assert [group.id for group in (await scheduler.next_batch()).groups] == [0, 2]
        with pytest.raises(SchedulerError, match=r"prompts: they ended before group 5, .* has deferred"):
            await scheduler.next_batch()
        assert scheduler.snapshot().deferred == (5,)

    run_virtual(main())


def test_a_dict_is_no_snapshot_yet():
    with pytest.raises(SchedulerError, match="resume: got dict, allowed is None or a SchedulerSnapshot"):
        SchedulerCore(policy(), replicas={"a": 1}, resume={"first_group": 3})
