"""The state machine: one event after the other."""

import pytest
from roll_scheduler import (
    Abort,
    Drop,
    Generate,
    Grade,
    MeanOutside,
    SchedulerCore,
    SchedulerError,
    SchedulerPolicy,
    SchedulerSnapshot,
    StarvationError,
    TicketState,
    TooManyFailures,
    ZeroSpread,
    ticket_seed,
)


def make_core(*, replicas=None, version=0, first_group=0, resolved=(), **policy):
    policy = SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, **policy})
    resume = SchedulerSnapshot(first_group=first_group, resolved=resolved, version=version)
    return SchedulerCore(policy, replicas=replicas or {"a": 100}, resume=resume)


def admit_all(core, now=0.0):
    commands = []
    while core.room:
        commands += core.admit(now)
    return commands


def tickets(commands, kind=Generate):
    return [command.ticket for command in commands if isinstance(command, kind)]


def finish(core, ticket, *, value=None, oldest_version=None, now=0.0):
    """Generates and grades a ticket; odd members get reward 1."""
    version = core.version if oldest_version is None else oldest_version
    commands = core.generated(ticket, tokens=5, oldest_version=version, truncated=False, now=now)
    for graded in tickets(commands, Grade):
        value = float(graded.member % 2) if value is None else value
        commands += core.graded(graded, value=value, now=now)
    return commands


def test_dispatch_goes_group_by_group_and_member_by_member():
    commands = admit_all(make_core(first_group=7))
    assert [(t.group, t.member, t.attempt) for t in tickets(commands)] == [
        (7, 0, 0),
        (7, 1, 0),
        (8, 0, 0),
        (8, 1, 0),
    ]
    assert [t.id for t in tickets(commands)] == [14, 15, 16, 17]
    assert tickets(commands)[1].seed == ticket_seed(0, 7, 1)


def test_dispatch_goes_to_the_least_loaded_replica():
    commands = admit_all(make_core(replicas={"small": 1, "large": 3}))
    assert [command.replica for command in commands] == ["small", "large", "large", "large"]


def test_tickets_wait_for_a_slot_and_get_it_in_order():
    core = make_core(replicas={"a": 1})
    first = tickets(admit_all(core))
    assert [t.id for t in first] == [0]
    commands = core.generated(first[0], tokens=5, oldest_version=0, truncated=False, now=1.0)
    assert [type(command) for command in commands] == [Grade, Generate]
    assert commands[1].ticket.id == 1


def test_batch_is_delivered_when_all_its_groups_are_complete():
    core = make_core()
    running = tickets(admit_all(core))
    for ticket in reversed(running):
        assert core.take_batch() is None
        finish(core, ticket)
    cut = core.take_batch()
    assert [delivery.group for delivery in cut.deliveries] == [0, 1]
    assert [t.member for t in cut.deliveries[0].members] == [0, 1]
    assert core.ledger.ends == {"delivered": 4}


def test_nothing_is_admitted_between_two_synchronous_batches():
    core = make_core()
    for ticket in tickets(admit_all(core)):
        finish(core, ticket)
    core.take_batch()
    assert core.room == 0
    core.publish(1, 0.0)
    core.open_batch()
    assert core.room == 2
    assert [t.group for t in tickets(admit_all(core))] == [2, 2, 3, 3]


def test_admission_without_room_is_refused():
    core = make_core()
    admit_all(core)
    with pytest.raises(SchedulerError, match="cannot be admitted: 2 are outstanding"):
        core.admit(0.0)


def test_failed_generation_is_retried_elsewhere_with_the_same_seed():
    core = make_core(replicas={"a": 4, "b": 4})
    first = admit_all(core)[0]
    (again,) = core.failed(first.ticket, "engine", "broken", 1.0)
    assert (first.replica, again.replica) == ("a", "b")
    assert (again.ticket.id, again.ticket.seed, again.ticket.attempt) == (
        first.ticket.id,
        first.ticket.seed,
        1,
    )


def test_retry_waits_for_a_slot_elsewhere_while_others_pass():
    core = make_core(replicas={"a": 1, "b": 1})
    on_a, on_b = admit_all(core)
    (passing,) = core.failed(on_a.ticket, "engine", "broken", 1.0)
    assert (passing.ticket.id, passing.replica) == (2, "a")
    commands = core.generated(on_b.ticket, tokens=5, oldest_version=0, truncated=False, now=2.0)
    retry = commands[1]
    assert (retry.ticket.id, retry.ticket.attempt, retry.replica) == (0, 1, "b")


def test_failed_generation_is_retried_on_the_only_replica():
    core = make_core()
    first = admit_all(core)[0]
    (again,) = core.failed(first.ticket, "engine", "broken", 1.0)
    assert (again.replica, again.ticket.attempt) == ("a", 1)


def test_failed_grading_is_graded_again_and_not_generated_again():
    core = make_core()
    first = tickets(admit_all(core))[0]
    core.generated(first, tokens=5, oldest_version=0, truncated=False, now=1.0)
    (again,) = core.failed(first, "grader", "broken", 2.0)
    assert again == Grade(ticket=again.ticket)
    assert again.ticket.attempt == 1


def test_group_is_delivered_with_the_members_that_did_not_fail():
    core = make_core(groups_per_batch=1, group_size=3, retries=0)
    first, *others = tickets(admit_all(core))
    assert core.failed(first, "engine", "broken", 1.0) == []
    for ticket in others:
        finish(core, ticket)
    cut = core.take_batch()
    assert [t.member for t in cut.deliveries[0].members] == [1, 2]
    assert cut.failures == {"engine": 1}
    assert core.ledger.ends == {"failed": 1, "delivered": 2}


def test_group_with_too_few_members_is_dropped_at_once_and_replaced():
    core = make_core(groups_per_batch=1, group_size=3, retries=0)
    first, second, third = tickets(admit_all(core))
    finish(core, second)
    core.failed(first, "engine", "broken", 1.0)
    commands = core.failed(second, "engine", "late report of a ticket that is ready", 1.0)
    assert commands == []
    commands = core.failed(third, "engine", "broken", 2.0)
    assert commands == [Drop(group=0, reason="failed")]
    assert core.ledger.ends == {"failed": 2, "group_failed": 1}
    assert [t.group for t in tickets(admit_all(core))] == [1, 1, 1]


def test_members_that_still_run_are_aborted_when_their_group_is_dropped():
    core = make_core(groups_per_batch=1, retries=0)
    first, second = tickets(admit_all(core))
    commands = core.failed(first, "engine", "broken", 1.0)
    assert commands == [Abort(ticket=second, reason="failed"), Drop(group=0, reason="failed")]
    assert finish(core, second) == []


def test_results_of_attempts_that_are_no_longer_awaited_are_ignored():
    core = make_core(replicas={"a": 4, "b": 4})
    first = tickets(admit_all(core))[0]
    (again,) = core.failed(first, "engine", "broken", 1.0)
    assert finish(core, first) == []
    assert core.failed(first, "engine", "broken", 1.0) == []
    assert finish(core, again.ticket) == [Grade(ticket=again.ticket)]
    assert core.ledger.failures == {"engine": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reward_that_is_no_number_is_a_failure(value):
    core = make_core(retries=0)
    first = tickets(admit_all(core))[0]
    finish(core, first, value=value)
    assert core.ledger.failures == {"value": 1}
    assert core.ledger.ends["failed"] == 1


def test_missed_generation_deadline_is_a_failure_and_aborts_the_task():
    core = make_core(replicas={"a": 4, "b": 4}, generate_deadline_s=10.0)
    first, *others = tickets(admit_all(core))
    for ticket in others:
        finish(core, ticket)
    assert core.next_deadline == 10.0
    assert core.tick(9.9) == []
    commands = core.tick(10.0)
    assert commands[0] == Abort(ticket=first, reason="deadline")
    assert (commands[1].ticket.id, commands[1].ticket.attempt, commands[1].replica) == (0, 1, "b")
    assert core.ledger.failures == {"deadline": 1}


def test_another_attempt_has_a_deadline_of_its_own():
    core = make_core(groups_per_batch=1, generate_deadline_s=10.0)
    first, second = tickets(admit_all(core))
    finish(core, second)
    (again,) = core.failed(first, "engine", "broken", 6.0)
    assert core.tick(10.0) == []
    assert core.next_deadline == 16.0
    assert core.tick(16.0)[0] == Abort(ticket=again.ticket, reason="deadline")


def test_missed_grading_deadline_is_a_failure_and_grades_again():
    core = make_core(grade_deadline_s=5.0)
    first = tickets(admit_all(core))[0]
    core.generated(first, tokens=5, oldest_version=0, truncated=False, now=2.0)
    assert core.next_deadline == 7.0
    abort, again = core.tick(7.0)
    assert abort == Abort(ticket=first, reason="deadline")
    assert again.ticket.attempt == 1
    assert core.next_deadline == 12.0


def test_deadline_of_a_finished_ticket_is_over():
    core = make_core(groups_per_batch=1)
    for ticket in tickets(admit_all(core)):
        finish(core, ticket)
    assert core.next_deadline is None
    assert core.tick(10_000.0) == []


def test_filtered_group_is_replaced_and_counted():
    core = make_core(groups_per_batch=1, filters=(ZeroSpread(),))
    for ticket in tickets(admit_all(core)):
        commands = finish(core, ticket, value=1.0)
    assert commands[-1] == Drop(group=0, reason="filter:zero_spread")
    for ticket in tickets(admit_all(core)):
        finish(core, ticket)
    cut = core.take_batch()
    assert [delivery.group for delivery in cut.deliveries] == [1]
    assert cut.dropped == {"filter:zero_spread": 1}
    assert core.ledger.ends == {"filter:zero_spread": 2, "delivered": 2}


def test_filter_sees_only_members_with_a_verdict():
    core = make_core(groups_per_batch=1, group_size=3, retries=0, filters=(MeanOutside(0.4, 0.6),))
    first, second, third = tickets(admit_all(core))
    core.failed(third, "engine", "broken", 1.0)
    finish(core, first, value=0.0)
    finish(core, second, value=1.0)
    assert len(core.take_batch().deliveries) == 1


def test_endless_filtering_ends_with_an_error_that_names_the_filter_and_the_counts():
    core = make_core(groups_per_batch=2, filters=(ZeroSpread(),), max_refills=3)
    while core.room:
        for ticket in tickets(admit_all(core)):
            finish(core, ticket, value=0.0)
    with pytest.raises(StarvationError, match=r"zero_spread 8.*allowed are 6") as caught:
        core.take_batch()
    assert caught.value.counts == {"filter:zero_spread": 8}


def test_too_many_failures_end_with_an_error_that_has_the_counts_and_the_last_message():
    core = make_core(max_failures=3, retries=9)
    ticket = tickets(admit_all(core))[0]
    for kind in ("engine", "engine", "deadline", "engine"):
        assert core.take_batch() is None
        (again,) = core.failed(ticket, kind, "port closed", 1.0)
        ticket = again.ticket
    with pytest.raises(
        TooManyFailures, match=r"4 attempts.*deadline 1, engine 3.*allowed are 3.*port closed"
    ):
        core.take_batch()
    assert core.room == 0


def test_failures_are_counted_per_batch():
    core = make_core(groups_per_batch=1, max_failures=1)
    for version in (1, 2):
        core.open_batch()
        first, second = tickets(admit_all(core))
        (again,) = core.failed(first, "engine", "broken", 1.0)
        finish(core, again.ticket)
        finish(core, second)
        assert core.take_batch().failures == {"engine": 1}
        core.publish(version, 0.0)


def test_group_that_turns_stale_is_dropped_when_the_version_is_published():
    core = make_core(groups_per_batch=1, max_staleness=1)
    first, second, *others = tickets(admit_all(core))
    finish(core, first)
    core.publish(1, 0.0)
    commands = core.publish(2, 0.0)
    assert commands == [Abort(ticket=second, reason="stale"), Drop(group=0, reason="stale")]
    assert core.ledger.ends == {"stale": 2}
    for ticket in others:
        finish(core, ticket, oldest_version=1)
    cut = core.take_batch()
    assert (cut.version, [delivery.group for delivery in cut.deliveries]) == (2, [1])


def test_completion_that_is_stale_on_arrival_drops_its_group():
    core = make_core(groups_per_batch=1, version=5)
    first, second = tickets(admit_all(core))
    commands = core.generated(first, tokens=5, oldest_version=4, truncated=False, now=1.0)
    assert commands == [Abort(ticket=second, reason="stale"), Drop(group=0, reason="stale")]


def test_an_engine_that_never_gets_new_weights_ends_with_an_error():
    core = make_core(groups_per_batch=1, version=5, max_refills=2)
    while core.room:
        for ticket in tickets(admit_all(core)):
            finish(core, ticket, oldest_version=0)
    with pytest.raises(StarvationError, match="stale 3"):
        core.take_batch()


def test_lost_member_does_not_make_its_group_stale():
    core = make_core(groups_per_batch=1, group_size=3, max_staleness=1, retries=0)
    first, *others = tickets(admit_all(core))[:3]
    core.generated(first, tokens=5, oldest_version=0, truncated=False, now=1.0)
    core.failed(first, "grader", "broken", 2.0)
    core.publish(1, 0.0)
    for ticket in others:
        finish(core, ticket, oldest_version=1)
    core.publish(2, 0.0)
    assert [delivery.group for delivery in core.take_batch().deliveries] == [0]


def test_version_cannot_go_back():
    core = make_core(version=3)
    core.publish(3, 0.0)
    with pytest.raises(SchedulerError, match="got version 2, allowed is at least the current 3"):
        core.publish(2, 0.0)


def test_tickets_of_a_dead_replica_go_elsewhere_before_new_ones():
    core = make_core(replicas={"a": 1, "b": 1})
    on_a, on_b = admit_all(core)
    (abort,) = core.replica_down("a", "died", 1.0)
    assert abort == Abort(ticket=on_a.ticket, reason="replica")
    commands = core.generated(on_b.ticket, tokens=5, oldest_version=0, truncated=False, now=2.0)
    assert (commands[1].ticket.id, commands[1].ticket.attempt, commands[1].replica) == (0, 1, "b")
    assert core.ledger.failures == {}
    assert core.ledger.totals["redispatched"] == 1


def test_loss_of_a_replica_costs_no_retry():
    core = make_core(replicas={"a": 4, "b": 4})
    first = tickets(admit_all(core))[0]
    moved = tickets(core.replica_down("a", "died", 1.0))[0]
    assert moved.id == first.id
    (again,) = core.failed(moved, "engine", "broken", 2.0)
    assert again.ticket.attempt == 2


def test_ticket_that_avoids_the_last_live_replica_runs_there_all_the_same():
    core = make_core(replicas={"a": 1, "b": 1})
    on_a, _ = admit_all(core)
    core.failed(on_a.ticket, "engine", "broken", 1.0)
    core.replica_down("b", "wanted elsewhere", 2.0, planned=True)
    running = [item for item in core.pending(3.0) if item.state is TicketState.RUNNING]
    (commands,) = [finish(core, item.ticket) for item in running]
    assert commands[1].ticket == tickets(commands)[0]
    assert (commands[1].ticket.id, commands[1].replica) == (0, "a")


def test_no_replica_left_is_an_error_that_names_them():
    core = make_core(replicas={"a": 4, "b": 4}, quarantine_after=0)
    admit_all(core)
    core.replica_down("a", "died", 1.0)
    core.replica_down("b", "lent to training", 1.0)
    with pytest.raises(SchedulerError, match=r"4 tickets wait.*'a' \(died\).*'b' \(lent to training\)"):
        core.take_batch()
    assert len(tickets(core.replica_up("b", 4, 2.0))) == 4
    assert core.take_batch() is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_core(replicas={"a": 0}), "'a': got 0 slots"),
        (
            lambda: SchedulerCore(SchedulerPolicy(groups_per_batch=1, group_size=1), replicas={}),
            "got {}, allowed are slots by name",
        ),
        (lambda: make_core().replica_up("a", 1, 0.0), "'a' is there already"),
        (lambda: make_core().replica_down("c", "died", 0.0), r"'c' is not there; live replicas are \['a'\]"),
    ],
)
def test_impossible_replicas_are_refused(call, message):
    with pytest.raises(SchedulerError, match=message):
        call()


def test_last_batches_are_smaller_and_then_empty_when_prompts_are_exhausted():
    core = make_core(groups_per_batch=2)
    running = tickets(core.admit(0.0))
    core.exhaust()
    assert core.room == 0
    assert core.take_batch() is None
    for ticket in running:
        finish(core, ticket)
    assert len(core.take_batch().deliveries) == 1
    core.open_batch()
    assert core.take_batch().deliveries == ()


def test_one_step_of_staleness_runs_two_batches_at_a_time():
    core = make_core(max_staleness=1)
    running = tickets(admit_all(core))
    assert len(running) == 8
    for ticket in running[4:]:
        finish(core, ticket)
    assert [delivery.group for delivery in core.take_batch().deliveries] == [2, 3]
    assert core.room == 0
    core.publish(1, 0.0)
    core.open_batch()
    fresh = tickets(admit_all(core))
    for ticket in fresh:
        finish(core, ticket)
    assert core.take_batch() is None, "groups 0 and 1 would be stale in the next batch"
    for ticket in running[:4]:
        finish(core, ticket, oldest_version=0)
    assert [delivery.group for delivery in core.take_batch().deliveries] == [0, 1]
    assert core.metrics(0.0)["scheduler/staleness"] == 1.0


def test_pending_names_what_is_waited_for_oldest_first():
    core = make_core(replicas={"a": 2})
    first, second = tickets(admit_all(core, now=10.0))
    core.generated(second, tokens=5, oldest_version=0, truncated=False, now=12.0)
    finish(core, first, now=13.0)
    pending = core.pending(15.0)
    assert [(item.ticket.id, item.state.value, item.age_s, item.replica) for item in pending] == [
        (1, "grading", 3.0, None),
        (2, "running", 3.0, "a"),
        (3, "running", 2.0, "a"),
    ]
    assert core.pending(15.0, most=2) == pending[:2]
    assert core.pending_count() == 3


def test_metrics_count_states_and_the_run():
    core = make_core(replicas={"a": 2})
    first, _ = tickets(admit_all(core, now=10.0))
    core.generated(first, tokens=5, oldest_version=0, truncated=False, now=12.0)
    metrics = core.metrics(15.0)
    assert metrics["scheduler/waiting"] == 1
    assert metrics["scheduler/running"] == 2
    assert metrics["scheduler/grading"] == 1
    assert metrics["scheduler/oldest_running_s"] == 5.0
    assert metrics["scheduler/oldest_grading_s"] == 3.0
    assert metrics["scheduler/tokens"] == 5
    assert metrics["scheduler/outstanding_groups"] == 2
    assert metrics["scheduler/replicas"] == 1
    assert all(type(value) is float for value in metrics.values())


def test_closing_ends_every_ticket():
    core = make_core(replicas={"a": 2})
    first, _ = tickets(admit_all(core))
    core.generated(first, tokens=5, oldest_version=0, truncated=False, now=1.0)
    commands = core.close()
    assert {command.ticket.id for command in commands if isinstance(command, Abort)} == {0, 1, 2}
    assert core.ledger.ends == {"closed": 4}
    assert core.pending(2.0) == []
    assert core.close() == []


def test_a_ticket_that_failed_somewhere_avoids_it_also_after_its_next_replica_was_lost():
    core = make_core(groups_per_batch=1, group_size=1, replicas={"a": 4, "b": 4, "c": 4})
    (ticket,) = tickets(admit_all(core))
    commands = core.failed(ticket, "engine", "broken", 0.0)
    assert [command.replica for command in commands] == ["b"]
    commands = core.replica_down("b", "died", 0.0)
    assert [command.replica for command in commands if isinstance(command, Generate)] == ["c"]
