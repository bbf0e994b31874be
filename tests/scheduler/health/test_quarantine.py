"""A prompt that kills replicas is found and dropped; those that ran beside it are not."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerCore, SchedulerError, SchedulerPolicy, SchedulerSnapshot


def lose(run, name, *, back=None, **how):
    run.do(run.core.replica_down(name, "died", run.now, **how))
    for ticket_id in [id for id, command in run.running.items() if command.replica == name]:
        del run.running[ticket_id]
    if back:
        run.do(run.core.replica_up(name, back, run.now))


def test_suspects_run_with_fewer_and_fewer_beside_them(core_run):
    run = core_run(replicas={"a": 8}, groups_per_batch=8, group_size=1)
    run.admit()
    beside = [len(run.running)]
    for _ in range(3):
        lose(run, "a", back=8)
        beside.append(len(run.running))
    assert beside == [8, 4, 4, 1], "half of them, the other half, then one by one"


def test_a_group_that_was_there_at_every_loss_is_dropped(core_run):
    run = core_run(replicas={"a": 8}, groups_per_batch=8, group_size=1)
    run.admit()
    for _ in range(3):
        lose(run, "a", back=8)
    assert run.dropped == []
    (alone,) = run.running
    lose(run, "a", back=8)
    assert run.dropped == [(alone, "quarantined")]
    assert run.core.ledger.ends == {"quarantined": 1}
    assert run.value("quarantined_groups") == 1


def test_who_ends_well_is_cleared(core_run):
    run = core_run(replicas={"a": 4}, groups_per_batch=4, group_size=1, quarantine_after=2)
    run.admit()
    lose(run, "a", back=4)
    while run.running:
        run.finish(*run.running)
    assert run.core.snapshot().suspects == ()
    assert run.take() == [0, 1, 2, 3]


def test_only_suspects_are_blamed_where_there_is_one(core_run):
    run = core_run(replicas={"a": 4, "b": 4}, groups_per_batch=8, group_size=1)
    run.admit()
    lose(run, "a", back=4)
    suspects = dict(run.core.snapshot().suspects)
    assert set(suspects.values()) == {1} and len(suspects) == 4
    lose(run, "b", back=4)
    assert set(dict(run.core.snapshot().suspects)) >= set(suspects)
    assert max(dict(run.core.snapshot().suspects).values()) <= 2


@pytest.mark.parametrize("how", [{"planned": True}, {}])
def test_nobody_is_suspected_of_a_planned_departure_or_if_told_so(core_run, how):
    run = core_run(replicas={"a": 4}, quarantine_after=3 if how else 0)
    run.admit()
    for _ in range(5):
        lose(run, "a", back=4, **how)
    assert len(run.running) == 4 and run.dropped == []


def test_the_blame_survives_a_resume(core_run):
    run = core_run(replicas={"a": 8}, groups_per_batch=8, group_size=1)
    run.admit()
    for _ in range(3):
        lose(run, "a", back=8)
    snapshot = run.core.snapshot()
    again = core_run(replicas={"a": 8}, groups_per_batch=8, group_size=1, core={"resume": snapshot})
    again.admit()
    assert again.core.snapshot().suspects == snapshot.suspects
    (alone,) = again.running
    lose(again, "a", back=8)
    assert again.dropped == [(alone, "quarantined")]


def test_one_loss_is_no_proof():
    with pytest.raises(SchedulerError, match=r"quarantine_after: got 1, allowed is 0 for never or >= 2"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, quarantine_after=1)


@settings(max_examples=100, deadline=None)
@given(
    killers=st.sets(st.integers(0, 11), min_size=1, max_size=2),
    replicas=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 10_000),
    group_size=st.integers(1, 3),
)
def test_killers_are_dropped_and_all_others_delivered(killers, replicas, seed, group_size):
    """A killer's replica dies at some moment while it runs; others end in any order."""
    policy = SchedulerPolicy(
        groups_per_batch=12 - len(killers), group_size=group_size, max_failures=0, quarantine_after=3
    )
    slots = {f"r{number}": count for number, count in enumerate(replicas)}
    core = SchedulerCore(policy, replicas=slots, resume=SchedulerSnapshot())
    core.open_batch()
    running, dropped, losses, order = {}, Counter(), 0, Random(seed)

    def do(commands):
        for command in commands:
            match type(command).__name__:
                case "Generate":
                    running[command.ticket.id] = command
                case "Abort":
                    running.pop(command.ticket.id, None)
                case "Drop":
                    dropped[command.group, command.reason] += 1
                case "Grade":
                    do(core.graded(command.ticket, value=float(command.ticket.member), now=0.0))

    for _ in range(2000):
        while core.room and core.next_group < 12:
            do(core.admit(0.0))
        assert running or core.pending_count() == 0, core.pending(0.0)
        if core.next_group == 12:
            core.exhaust()
        if (cut := core.take_batch(0.0)) is not None:
            break
        ticket_id = order.choice(sorted(running))
        command = running[ticket_id]
        if command.ticket.group in killers:
            losses += 1
            do(core.replica_down(command.replica, "died", 0.0, returns=True))
            do(core.replica_up(command.replica, slots[command.replica], 0.0))
        else:
            del running[ticket_id]
            do(core.generated(command.ticket, tokens=1, oldest_version=0, truncated=False, now=0.0))
    delivered = {delivery.group for delivery in cut.deliveries}
    quarantined = {group for group, _ in dropped}
    assert {reason for _, reason in dropped} <= {"quarantined"}
    assert not delivered & killers
    assert losses <= 8 * group_size * len(killers)
    if len(killers) == 1:  # two may frame somebody, if they strike beside it five times
        assert quarantined <= killers and delivered == set(range(12)) - killers


@pytest.mark.timeout(15)
def test_many_suspects_on_many_replicas_cost_an_event_next_to_nothing(core_run):
    replicas = {f"r{number}": 16 for number in range(1024)}
    run = core_run(replicas=replicas, groups_per_batch=1024, group_size=16)
    run.admit()
    for number in range(64):
        run.do(run.core.replica_down(f"r{number}", "died", 1.0))
    run.generate(*list(run.running)[:14_000])
    assert run.value("running") + run.value("waiting") + run.value("grading") == 1024 * 16
