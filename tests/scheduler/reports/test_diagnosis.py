"""Which of the tickets is late, and why."""

import asyncio

from roll_scheduler import PartialRollouts, SchedulerPolicy, Stragglers, TicketFailed


def whys(run, **options):
    return {late.ticket.id: late.why for late in run.core.why(run.now, **options).late}


def test_a_ticket_that_waits_says_for_what(core_run):
    run = core_run(replicas={"a": 1, "b": 1}, groups_per_batch=2)
    run.admit()
    run.tick(3.0)
    reasons = whys(run)
    assert reasons[0] == "generates, deadline 600 s"
    assert reasons[3] == "no slot is free"
    run.do(run.core.failed(run.running.pop(0).ticket, "engine", "broken", run.now))
    run.do(run.core.replica_drains("b", run.now))
    assert whys(run)[0] in ("no slot is free", "failed on 'a', waits for another replica")


def test_a_suspect_and_a_limited_environment_are_named(core_run):
    run = core_run(
        groups_per_batch=1,
        group_size=3,
        concurrency={"shop": 1},
        replicas={"a": 8},
        core={"tag": lambda group: "shop"},
    )
    run.admit()
    assert whys(run)[2] == "its environment 'shop' has 1 under way (concurrency)"
    run = core_run(groups_per_batch=1, group_size=3, replicas={"a": 8, "b": 2})
    run.admit()
    run.do(run.core.replica_down("a", "died", run.now))
    assert any("was there at 1 losses of a replica" in why for why in whys(run).values())


def test_what_blocks_all_is_said_once_and_for_each(core_run):
    run = core_run(replicas={"a": 1})
    run.admit()
    run.do(run.core.pause("keep", run.now))
    run.tick(2.0)
    why = run.core.why(run.now, most=2)
    assert why.blocked == "paused for 2.0 s, resume was not called"
    assert len(why.late) == 2 and sum(why.counts.values()) == 4
    lines = why.text().splitlines()
    assert lines[0] == "3 waiting, 1 running; paused for 2.0 s, resume was not called"
    assert lines[1].split()[:4] == ["ticket", "group", "member", "state"]
    assert len(lines) == 4


def test_tokens_and_stops_and_twins_are_shown(core_run):
    run = core_run(
        groups_per_batch=1,
        replicas={"a": 8, "b": 8},
        partial=PartialRollouts(max_versions=3, stop_at_cut=False),
        stragglers=Stragglers(),
    )
    run.admit()
    run.now += 2.0
    run.core.reported(run.running[0].ticket, 70, run.now)
    run.tick(3.0)
    late = {each.ticket.id: each for each in run.core.why(run.now).late}
    assert (late[0].tokens, late[1].tokens) == (70, 0)
    assert "last report 3.0 s ago" in late[0].why
    flight = run.core._book.flights[1]
    run.core._attempts.duplicate(flight, "b" if flight.replica == "a" else "a", run.now)
    assert "and on" in whys(run)[1]
    run.do(run.core.pause("stop", run.now))
    assert whys(run)[1] == "was asked to stop"


def test_nothing_that_is_late_is_one_line(core_run):
    run = core_run()
    assert run.core.why(0.0).text() == "no ticket"


def test_live_a_watchdog_finds_the_one_of_many_that_is_late(run_virtual, work):
    async def main():
        policy = SchedulerPolicy(groups_per_batch=8, group_size=8, generate_deadline_s=500.0)

        def faults(ticket, replica):
            if ticket.id == 5 and ticket.attempt == 0:
                raise TicketFailed("engine", "lost")

        work.generate_faults = faults
        work.seconds = lambda ticket: 100.0 if ticket.id == 5 and ticket.attempt == 1 else 1.0
        async with work.scheduler(policy, replicas={"a": 64, "b": 64}) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(50.0)
            why = scheduler.why(most=3)
            (late,) = why.late
            first = next(where for ticket, where in work.started if ticket.id == 5)
            assert (late.ticket.id, late.ticket.attempt) == (5, 1)
            assert {first, late.replica} == {"a", "b"}
            assert late.age_s == 49.0 and "failed 1 times" in late.why
            assert why.counts == {"waiting": 0, "running": 1, "grading": 0, "ready": 63}
            scheduler.report_tokens(late.ticket, 12)
            assert scheduler.why().late[0].tokens == 12
            await waiting

    run_virtual(main())
