"""Where tickets are, as metrics: each state's count and greatest age, and what became of all in the run."""

from roll_scheduler import OverProvision, SchedulerSnapshot


def states(run):
    names = ("waiting", "running", "grading", "ready", "training", "trained")
    return {name: run.value(name) for name in names if run.value(name)}


def test_a_ticket_passes_through_every_state(core_run):
    run = core_run(groups_per_batch=1, group_size=2, replicas={"a": 1})
    run.admit()
    assert states(run) == {"waiting": 1, "running": 1}
    run.generate(0)
    assert states(run) == {"running": 1, "grading": 1}
    run.grade(0)
    assert states(run) == {"running": 1, "ready": 1}
    run.finish(1)
    assert states(run) == {"ready": 2}
    assert run.take() == [0]
    assert states(run) == {"training": 2}
    run.next_version()
    assert states(run) == {"waiting": 1, "running": 1, "trained": 2}


def test_ages_are_those_of_the_oldest_in_a_state(core_run):
    run = core_run(groups_per_batch=1, group_size=3)
    run.admit()
    run.tick(2.0)
    run.generate(0, 1)
    run.tick(3.0)
    run.grade(0)
    run.tick(4.0)
    ages = [run.value(f"oldest_{state}_s") for state in ("waiting", "running", "grading", "ready")]
    assert ages == [0.0, 9.0, 7.0, 4.0]


def test_what_is_in_training_at_a_snapshot_counts_as_trained(core_run):
    run = core_run(groups_per_batch=1)
    run.admit()
    run.finish(0, 1)
    run.take()
    snapshot = run.core.snapshot()
    assert snapshot.totals["trained"] == 2
    again = core_run(groups_per_batch=1, core={"resume": snapshot})
    assert states(again) == {"trained": 2}


def test_every_admitted_ticket_ends_in_one_way(core_run):
    run = core_run(group_size=2, over_provision=OverProvision(groups=1, members=1, defer=True), retries=0)
    run.admit()
    run.finish(0, 1, 3)
    ticket = run.running.pop(4).ticket
    run.do(run.core.failed(ticket, "engine", "broken", run.now))
    run.finish(5)
    assert run.take() == [0, 1]
    assert run.core.ledger.ends == {"delivered": 4, "surplus": 1, "failed": 1, "deferred": 3}
    run.next_version()
    run.do(run.core.close())
    ends = run.core.ledger.ends
    begun = 9 + 3 * 3
    assert sum(ends.values()) == begun and ends["closed"] == 9


def test_counts_go_on_after_a_resume(core_run):
    run = core_run(core={"resume": SchedulerSnapshot(totals={"trained": 40, "begun_anew": 2})})
    assert run.value("trained") == 40 and run.value("begun_anew") == 2
