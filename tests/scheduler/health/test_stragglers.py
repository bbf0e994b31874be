"""Free slots go to completions that would end sooner there; a ticket ends once, whoever wins."""

import math

import pytest
from roll_scheduler import PartialRollouts, SchedulerError, SchedulerPolicy, Stragglers

PARTS = PartialRollouts(max_versions=9, stop_at_cut=False)


def lengths(tokens=100.0):
    """An estimator that expects the same of all."""

    class Fixed:
        def observe(self, key, domain, tokens, truncated=False):
            pass

        def expected(self, key, domain="", *, so_far=0.0, running=()):
            return max(tokens, so_far + 1.0)

    return Fixed()


def with_speeds(core_run, *, groups=1, group_size=2, estimator=None, **policy):
    """A run whose replica `slow` has been seen to give 1 token a second and `fast` 10."""
    run = core_run(
        groups_per_batch=groups,
        group_size=group_size,
        replicas={"slow": 4, "fast": 4},
        core={"estimator": estimator or lengths()},
        **{"stragglers": Stragglers(), "generate_deadline_s": 1000.0, **policy},
    )
    for name, seconds in (("slow", 100.0), ("fast", 10.0)):
        for _ in range(4):
            run.core._queue.health.ended(name, tokens=100, seconds=seconds)
    return run


def late(run, seconds=5.0):
    """Admits tickets, on both replicas, ends those on the fast one, and lets time pass."""
    run.admit()
    started = dict(run.running)
    ended = [ticket for ticket, command in started.items() if command.replica == "fast"]
    run.now += 1.0
    run.finish(*ended)
    run.tick(seconds)
    return started, ended


def test_a_late_ticket_is_duplicated_with_its_seed_and_the_quicker_attempt_counts(core_run):
    run = with_speeds(core_run)
    started, ended = late(run)
    assert (started[0].replica, ended) == ("slow", [1])
    copy = run.running[0]
    assert (copy.replica, copy.ticket.attempt, copy.ticket.seed) == ("fast", 1, started[0].ticket.seed)
    run.now += 9.0
    run.finish(0)
    assert run.aborted == [(0, "duplicate")]
    assert run.take() == [0]
    assert run.core.ledger.ends == {"delivered": 2}
    assert (run.value("duplicates"), run.value("duplicates_won"), run.value("failed")) == (1, 1, 0)


def test_the_original_may_win_too(core_run):
    run = with_speeds(core_run)
    started, _ = late(run)
    run.running[0] = started[0]
    run.finish(0)
    assert run.aborted == [(0, "duplicate")]
    assert run.take() == [0]
    assert run.core.ledger.ends == {"delivered": 2}
    assert run.value("duplicates_won") == 0


@pytest.mark.parametrize("attempt", ["original", "copy"])
def test_when_one_attempt_fails_the_other_goes_on_at_no_cost_of_a_retry(core_run, attempt):
    run = with_speeds(core_run, retries=0)
    started, _ = late(run)
    copy = run.running[0]
    fails, left = (started[0], copy) if attempt == "original" else (copy, started[0])
    assert run.do(run.core.failed(fails.ticket, "engine", "broken", run.now)) == []
    assert run.core.failed(fails.ticket, "engine", "broken", run.now) == []
    run.running[0] = left
    run.finish(0)
    assert run.take() == [0]
    assert (run.value("failed"), run.value("retried")) == (1, 0)
    assert run.core.ledger.ends == {"delivered": 2}


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("lost", ["slow", "fast"])
def test_when_a_replica_leaves_the_attempt_elsewhere_goes_on(core_run, lost, planned):
    run = with_speeds(core_run)
    started, _ = late(run)
    attempts = {"slow": started[0], "fast": run.running[0]}
    run.do(run.core.replica_down(lost, "gone", run.now, planned=planned))
    assert run.aborted == [(0, "replica")] and run.running == {}
    assert run.core.pending_count() == 1
    run.running[0] = attempts["fast" if lost == "slow" else "slow"]
    run.finish(0)
    assert run.take() == [0]
    assert run.value("redispatched") == 0


def test_each_attempt_has_a_deadline_of_its_own(core_run):
    run = with_speeds(core_run, generate_deadline_s=20.0)
    started, _ = late(run)
    run.tick(14.5)
    assert run.aborted == [(0, "deadline")] and run.value("failed") == 1
    assert run.core.pending(run.now)[0].replica == "fast"
    run.tick(10.0)
    assert [reason for _, reason in run.aborted] == ["deadline", "deadline"]
    assert run.running[0].ticket.attempt == 2 and run.running[0].ticket.seed == started[0].ticket.seed


@pytest.mark.parametrize("mode", ["abort", "stop"])
def test_a_pause_leaves_one_attempt_that_begins_or_goes_on_afterwards(core_run, mode):
    run = with_speeds(core_run, partial=PARTS)
    started, _ = late(run)
    run.running[0] = started[0]
    run.do(run.core.pause(mode, run.now))
    reasons = [reason for _, reason in run.aborted]
    assert reasons == (["duplicate", "pause"] if mode == "abort" else ["duplicate"])
    if mode == "stop":
        run.running[0] = started[0]
        run.stop(0, tokens=4)
    run.do(run.core.resume(run.now))
    assert run.running[0].ticket.continues == (4 if mode == "stop" else 0)
    run.finish(0, tokens=9)
    assert run.take() == [0]


def test_surplus_ends_both_attempts(core_run):
    from roll_scheduler import OverProvision

    run = with_speeds(core_run, group_size=1, over_provision=OverProvision(members=1))
    run.admit()
    names = {command.replica: ticket for ticket, command in run.running.items()}
    run.tick(5.0)
    assert run.value("duplicates") == 1
    run.running.pop(names["slow"])
    run.finish(names["fast"])
    assert run.aborted == [(names["slow"], "duplicate"), (names["slow"], "surplus")]
    assert run.take() == [0]
    assert run.core.ledger.ends == {"delivered": 1, "surplus": 1}


def test_nothing_is_duplicated_where_replicas_are_alike(core_run):
    run = core_run(
        groups_per_batch=1,
        replicas={"a": 4, "b": 4},
        core={"estimator": lengths()},
        stragglers=Stragglers(),
    )
    for name in ("a", "b"):
        for _ in range(4):
            run.core._queue.health.ended(name, tokens=100, seconds=10.0)
    run.admit()
    run.finish(1)
    for _ in range(15):
        run.tick(1.0)
    assert run.value("duplicates") == 0


def test_nothing_is_duplicated_before_speeds_are_known_or_while_a_ticket_waits(core_run):
    run = core_run(groups_per_batch=1, replicas={"a": 4, "b": 4}, stragglers=Stragglers())
    run.admit()
    run.tick(100.0)
    assert run.value("duplicates") == 0
    run = with_speeds(core_run)
    run.core.replica_drains("fast", run.now)
    run.core._replicas.down("slow", "gone", returns=True)
    run.admit()
    run.tick(100.0)
    assert run.value("duplicates") == 0


def test_at_most_so_many_duplicates_run_at_a_time(core_run):
    run = with_speeds(core_run, group_size=8, stragglers=Stragglers(most=2))
    late(run)
    assert run.value("duplicates") == 2
    run.tick(5.0)
    assert run.value("duplicates") == 2


def test_a_ticket_of_a_limited_environment_is_left_alone(core_run):
    run = with_speeds(core_run)
    limited = core_run(
        groups_per_batch=1,
        replicas={"slow": 4, "fast": 4},
        core={"estimator": lengths(), "tag": lambda group: "shop"},
        stragglers=Stragglers(),
        concurrency={"shop": 9},
        generate_deadline_s=1000.0,
    )
    limited.core._queue.health.restore(run.core._queue.health.state())
    late(limited)
    assert limited.value("duplicates") == 0


def test_a_generation_that_reports_no_progress_is_late_on_an_equal_replica(core_run):
    run = core_run(
        groups_per_batch=1,
        replicas={"a": 4, "b": 4},
        core={"estimator": lengths()},
        stragglers=Stragglers(),
        generate_deadline_s=1000.0,
    )
    for name in ("a", "b"):
        for _ in range(4):
            run.core._queue.health.ended(name, tokens=100, seconds=10.0)
    run.admit()
    stuck = run.running[0]
    run.finish(1)
    run.now += 5.0
    run.core.reported(stuck.ticket, 0, run.now)
    run.tick(20.0)
    assert (run.value("duplicates"), run.running[0].replica) == (1, "b" if stuck.replica == "a" else "a")


def test_what_takes_far_longer_than_anything_before_is_late_without_a_report(core_run):
    run = core_run(
        groups_per_batch=1,
        replicas={"a": 4, "b": 4},
        core={"estimator": lengths()},
        stragglers=Stragglers(),
        generate_deadline_s=1000.0,
    )
    for name in ("a", "b"):
        for _ in range(4):
            run.core._queue.health.ended(name, tokens=100, seconds=10.0)
    run.admit()
    run.finish(1)
    run.tick(19.0)
    assert run.value("duplicates") == 0
    run.tick(2.0)
    assert run.value("duplicates") == 1


def test_a_straggler_that_moves_takes_its_tokens_along(core_run):
    run = with_speeds(core_run, partial=PARTS, stragglers=Stragglers(action="move"))
    _, _ = late(run)
    assert run.stopping == {0: "straggler"}
    run.stop(0, tokens=30)
    assert (run.running[0].replica, run.running[0].ticket.continues) == ("fast", 30)
    run.finish(0, tokens=40)
    assert run.take() == [0]
    assert (run.value("moved"), run.value("begun_anew")) == (1, 0)


def test_a_copy_that_would_span_too_many_versions_is_not_made(core_run):
    parts = PartialRollouts(max_versions=1, stop_at_cut=False)
    run = with_speeds(core_run, partial=parts, max_staleness=5)
    run.admit()
    run.do(run.core.pause("stop", run.now))
    run.stop(*list(run.running), tokens=3)
    run.do(run.core.resume(run.now))
    run.do(run.core.publish(1, run.now))
    run.tick(5.0)
    assert run.value("duplicates") == 0


def test_looks_are_at_most_as_frequent_as_the_rule_says(core_run):
    run = with_speeds(core_run, stragglers=Stragglers(every_s=7.0))
    run.admit()
    assert run.core.next_deadline == 7.0
    run.tick(7.5)
    assert run.core.next_deadline == 14.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("gain", value) for value in (0, 1, -1, math.nan, math.inf, True, "0.5", None)),
        *(("every_s", value) for value in (0, -1, math.nan, math.inf, True, "1")),
        *(("most", value) for value in (0, -1, 1.0, True, None, math.nan)),
        *(("action", value) for value in ("", "copy", None, 1)),
    ],
)
def test_a_bad_value_is_refused_by_name(field, value):
    with pytest.raises(SchedulerError, match=rf"Stragglers\.{field}: got .*, allowed is"):
        Stragglers(**{field: value})


def test_a_move_without_partial_rollouts_is_refused():
    with pytest.raises(SchedulerError, match=r"stragglers\.action: got 'move', allowed is 'duplicate'"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, stragglers=Stragglers(action="move"))


@pytest.mark.parametrize("value", [True, "duplicate", {"gain": 0.1}])
def test_a_policy_refuses_what_is_no_rule(value):
    with pytest.raises(SchedulerError, match=r"stragglers: got .*, allowed is Stragglers or None"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, stragglers=value)


@pytest.mark.parametrize("tokens", [-1, 1.5, "3", True, None])
def test_a_report_that_is_no_count_is_refused(core_run, tokens):
    run = with_speeds(core_run)
    run.admit()
    with pytest.raises(SchedulerError, match="reported: got"):
        run.core.reported(run.running[0].ticket, tokens, 1.0)


def test_live_the_loser_is_cancelled_and_the_winner_is_in_the_batch(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 1.0
        policy = SchedulerPolicy(groups_per_batch=2, group_size=4, stragglers=Stragglers(every_s=0.5))
        slow = {"slow": 8.0, "fast": 1.0}
        work.seconds = lambda ticket: slow[
            next(where for started, where in reversed(work.started) if started is ticket)
        ]
        async with work.scheduler(policy, replicas={"slow": 8, "fast": 8}) as scheduler:
            for _ in range(2):
                await scheduler.next_batch()
                work.version += 1
                scheduler.publish(work.version)
            batch = await scheduler.next_batch()
            assert scheduler.metrics()["scheduler/duplicates_won"] > 0
            assert work.cancelled and all(ticket.attempt == 0 for ticket in work.cancelled)
            members = [member.ticket for group in batch.groups for member in group.members]
            assert len({ticket.id for ticket in members}) == 8
        assert scheduler.ledger() == {"delivered": 24}

    run_virtual(main())


def test_simulated_a_slow_replica_costs_much_less_and_equal_ones_nothing():
    from roll_scheduler.simulator import TRACES, EngineModel, LognormalLengths, Setting, Workload, simulate

    def seconds(slowness, **policy):
        engines = [EngineModel(slots=64, base_s=0.01 * by, sequence_s=50e-6 * by) for by in (slowness, 1, 1)]
        setting = Setting(
            workload=Workload(LognormalLengths(TRACES["D"], seed=1)),
            engines=tuple(engines),
            groups_per_batch=16,
            group_size=8,
        )
        return simulate(setting, setting.policy(**policy), steps=4).total_s

    moves = {"stragglers": Stragglers(action="move"), "partial": PARTS}
    assert seconds(1) == seconds(1, stragglers=Stragglers())
    assert seconds(3, stragglers=Stragglers()) < 0.75 * seconds(3)
    assert seconds(3, **moves) < 0.75 * seconds(3)
