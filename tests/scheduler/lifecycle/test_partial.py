"""Completions that are stopped and go on later, with their tokens and the versions of them."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler import (
    Generated,
    Graded,
    PartialRollouts,
    RolloutScheduler,
    SchedulerError,
    SchedulerPolicy,
    TicketFailed,
    VersionSpan,
    joined_spans,
    versions_of,
)


def spans(*pairs):
    return tuple(VersionSpan(version=version, tokens=tokens) for version, tokens in pairs)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)).map(lambda pair: spans(pair)[0]), max_size=4)
    )
)
def test_joined_spans_are_the_run_length_code_of_all_tokens(parts):
    joined = ()
    for part in parts:
        joined = joined_spans(joined, part)
    assert versions_of(joined) == [version for part in parts for version in versions_of(part)]
    assert all(first.version != then.version for first, then in pairwise(joined))


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_versions", 0), ("max_versions", True), ("stop_deadline_s", 0), ("stop_deadline_s", float("nan"))],
)
def test_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(SchedulerError, match=rf"PartialRollouts\.{field}: got .*, allowed is"):
        PartialRollouts(**{field: value})


def test_a_span_without_tokens_is_refused():
    with pytest.raises(SchedulerError, match=r"VersionSpan\.tokens: got 0"):
        VersionSpan(version=1, tokens=0)


def carried(core_run, **policy):
    """A run with staleness 1 in which group 0 and 1 are delivered and tickets 4 to 7 run."""
    run = core_run(**{"max_staleness": 1, "partial": PartialRollouts(), **policy})
    run.admit()
    run.finish(0, 1, 2, 3)
    return run


def test_what_runs_when_a_batch_is_complete_is_stopped_and_goes_on_with_the_next(core_run):
    run = carried(core_run)
    assert run.take() == [0, 1]
    assert run.stopping == dict.fromkeys([4, 5, 6, 7], "cut")
    run.stop(4, 5, 6, tokens=3)
    run.generate(7, tokens=9)  # it was done before the stop reached it
    assert run.running == {} and run.core.room == 0
    run.next_version()
    assert [(run.running[id].ticket.continues, run.running[id].ticket.attempt) for id in (4, 5, 6)] == [
        (3, 1)
    ] * 3
    assert run.running[8].ticket.continues == 0
    run.grade(7)
    run.finish(4, 5, 6, tokens=8)
    cut = run.core.take_batch(run.now)
    assert [delivery.group for delivery in cut.deliveries] == [2, 3]
    assert cut.deliveries[0].spans == (spans((0, 3), (1, 5)),) * 2
    assert cut.deliveries[1].spans == (spans((0, 3), (1, 5)), spans((0, 9)))
    assert run.value("staleness") == 1.0
    assert run.value("tokens") == 4 * 5 + 3 * 8 + 9
    assert run.value("stopped") == 3


def test_staleness_counts_from_the_oldest_token(core_run):
    run = carried(core_run)
    run.take()
    run.stop(4, 5, 6, 7, tokens=3)
    run.next_version()
    run.finish(8, 9, 10, 11)
    assert run.take() is None, (
        "groups 2 and 3 have tokens of version 0 and would be too old for the next batch"
    )
    run.finish(4, 5, 6, 7, tokens=4)
    assert run.take() == [2, 3]
    assert run.value("staleness") == 1.0


def test_a_completion_that_would_span_too_many_versions_begins_anew(core_run):
    partial = PartialRollouts(max_versions=2, stop_at_cut=False)
    run = core_run(groups_per_batch=1, group_size=1, max_staleness=2, partial=partial)
    run.admit()
    continues = []
    for version in (1, 2):
        run.do(run.core.pause("stop", run.now))
        run.stop(0, 1, 2, tokens=3 * version)
        run.do(run.core.publish(version, run.now))
        run.do(run.core.resume(run.now))
        continues.append([run.running[id].ticket.continues for id in range(3)])
    assert continues == [[3] * 3, [0] * 3]
    assert run.value("begun_anew") == 3 and run.value("discarded_tokens") == 3 * 6


def test_a_part_that_is_too_old_begins_anew_and_its_group_lives_on(core_run):
    run = carried(core_run)
    run.do(run.core.pause("stop", run.now))
    run.stop(4, 5, 6, 7, tokens=3)
    run.do(run.core.publish(2, run.now))
    run.do(run.core.resume(run.now))
    assert {run.running[id].ticket.continues for id in (4, 5, 6, 7)} == {0}
    assert run.dropped == [(0, "stale"), (1, "stale")]
    assert run.value("discarded_tokens") == 12


def test_a_part_that_is_too_old_when_it_arrives_begins_anew(core_run):
    run = carried(core_run)
    run.do(run.core.pause("stop", run.now))
    run.do(run.core.publish(2, run.now))
    run.stop(4, 5, 6, 7, tokens=3, version=0)
    run.do(run.core.resume(run.now))
    assert {run.running[id].ticket.continues for id in (4, 5, 6, 7)} == {0}
    assert run.dropped == [(0, "stale"), (1, "stale")]


def test_a_planned_departure_keeps_tokens_and_a_loss_does_not(core_run):
    run = core_run(replicas={"a": 2, "b": 2}, partial=PartialRollouts(stop_at_cut=False))
    run.admit()
    on_a = [id for id, command in run.running.items() if command.replica == "a"]
    run.do(run.core.replica_down("a", "lent", run.now, returns=True, planned=True))
    assert run.stopping == dict.fromkeys(on_a, "replica")
    pending = {item.ticket.id: item.replica for item in run.core.pending(run.now)}
    assert [pending[id] for id in on_a] == [None, None]
    run.stop(*on_a, tokens=7)
    run.do(run.core.replica_up("c", 2, run.now))
    assert [(run.running[id].replica, run.running[id].ticket.continues) for id in on_a] == [("c", 7)] * 2
    assert run.core.snapshot().suspects == ()
    run.do(run.core.replica_down("c", "died", run.now))
    assert run.aborted == [(id, "replica") for id in on_a]
    run.do(run.core.replica_up("d", 4, run.now))
    assert {run.running[id].ticket.continues for id in on_a if id in run.running} == {7}


def test_a_generation_that_does_not_stop_in_time_has_failed(core_run):
    run = carried(core_run, partial=PartialRollouts(stop_deadline_s=5.0), retries=1)
    run.take()
    run.stop(5, 6, 7, tokens=3)
    assert run.core.next_deadline == 5.0
    run.tick(5.0)
    assert run.aborted == [(4, "stop")]
    assert run.core.ledger.failures == {"stop": 1}
    run.next_version()
    assert run.running[4].ticket.continues == 0


def test_a_failure_gives_up_what_was_kept(core_run):
    run = carried(core_run)
    run.take()
    run.stop(4, 5, 6, 7, tokens=3)
    run.next_version()
    ticket = run.running.pop(4).ticket
    run.do(run.core.failed(ticket, "engine", "broken", run.now))
    assert run.running[4].ticket.continues == 0
    assert run.value("discarded_tokens") == 3


def test_an_engine_may_stop_by_itself_but_not_without_a_token(core_run):
    run = core_run(partial=PartialRollouts(stop_at_cut=False), retries=0, min_members=1)
    run.admit()
    run.stop(0, tokens=2)
    assert run.running[0].ticket.continues == 2
    run.stop(0, tokens=2)
    assert run.core.ledger.failures == {"stop": 1} and 0 not in run.running


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"tokens": 2}, "got 2 tokens, allowed are at least the 3 of earlier parts"),
        ({"tokens": 9, "spans": spans((1, 2), (2, 3))}, "for 6 new tokens since version 1"),
        ({"tokens": 9, "spans": spans((2, 6))}, "for 6 new tokens since version 1"),
    ],
)
def test_tokens_that_do_not_fit_what_is_kept_are_an_error(core_run, event, said):
    run = carried(core_run)
    run.take()
    run.stop(4, 5, 6, 7, tokens=3)
    run.next_version()
    with pytest.raises(SchedulerError, match=said):
        run.generate(4, version=1, **event)


def test_an_engine_that_takes_in_weights_on_the_way_reports_spans(core_run):
    run = core_run(max_staleness=1, partial=PartialRollouts(stop_at_cut=False), groups_per_batch=1)
    run.admit()
    run.do(run.core.publish(1, run.now))
    run.finish(0, 1, tokens=6, version=0, spans=spans((0, 4), (1, 2)))
    assert run.core.take_batch(0.0).deliveries[0].spans == (spans((0, 4), (1, 2)),) * 2


def test_stopping_without_partial_rollouts_is_an_error(core_run):
    run = core_run()
    run.admit()
    with pytest.raises(SchedulerError, match=r"only with SchedulerPolicy\.partial"):
        run.stop(0, tokens=1)


def test_a_synchronous_batch_leaves_nothing_to_carry_over():
    with pytest.raises(SchedulerError, match=r"partial\.stop_at_cut: got True, allowed is max_staleness > 0"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, partial=PartialRollouts())


class Tokenwise:
    """Generates a token a second at the version of the moment and notes how many it sampled."""

    def __init__(self, length):
        self.length, self.version, self.sampled, self.calls = length, 0, 0, []

    async def generate(self, ticket, prompt, replica, part):
        self.calls.append((ticket.id, ticket.attempt, part.tokens, versions_of(part.spans)))
        tokens = list(part.kept or [])
        assert len(tokens) == part.tokens == ticket.continues
        began = self.version
        while len(tokens) < self.length(ticket):
            try:
                await asyncio.wait_for(part.stopping.wait(), 1.0)
            except TimeoutError:
                tokens.append(began)
                self.sampled += 1
                continue
            return Generated(
                completion=tokens, tokens=len(tokens), oldest_version=began, truncated=False, finished=False
            )
        return Generated(completion=tokens, tokens=len(tokens), oldest_version=began, truncated=False)


async def grade(ticket, prompt, completion):
    return Graded(score=None, value=float(ticket.member % 2))


def test_nothing_is_sampled_twice_and_every_token_has_its_version(run_virtual):
    """A long member of each group is carried over twice; devices are free between two batches."""
    engine = Tokenwise(lambda ticket: 25 if ticket.member == 0 else 8)

    async def main():
        policy = SchedulerPolicy(
            groups_per_batch=2,
            group_size=2,
            max_staleness=2,
            partial=PartialRollouts(max_versions=3),
        )
        lengths = []
        async with RolloutScheduler(
            prompts=range(12),
            generate_part=engine.generate,
            grade=grade,
            replicas={"a": 100},
            policy=policy,
            clock=asyncio.get_running_loop().time,
        ) as scheduler:
            while (batch := await scheduler.next_batch()).groups:
                await asyncio.sleep(1.0)
                running = [item for item in scheduler.pending() if item.state == "running"]
                assert not running, "the trainer has the devices"
                for group in batch.groups:
                    for member in group.members:
                        assert versions_of(member.spans) == member.generated.completion
                        lengths.append(member.generated.tokens)
                engine.version += 1
                scheduler.publish(engine.version)
        assert sorted(lengths) == [8] * 12 + [25] * 12
        assert engine.sampled == sum(lengths)
        assert max(attempt for _, attempt, _, _ in engine.calls) >= 1
        assert scheduler.metrics()["scheduler/tokens"] == sum(lengths)

    run_virtual(main())


def test_a_pause_that_stops_returns_when_nothing_is_generated(run_virtual):
    engine = Tokenwise(lambda ticket: 10)

    async def main():
        policy = SchedulerPolicy(groups_per_batch=1, group_size=2, partial=PartialRollouts(stop_at_cut=False))
        async with RolloutScheduler(
            prompts=range(1),
            generate_part=engine.generate,
            grade=grade,
            replicas={"a": 2},
            policy=policy,
            clock=asyncio.get_running_loop().time,
        ) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(4.5)
            await scheduler.pause("stop")
            assert asyncio.get_running_loop().time() == 4.5
            assert engine.sampled == 8
            await asyncio.sleep(20)
            assert engine.sampled == 8
            scheduler.resume()
            (group,) = (await waiting).groups
            assert engine.sampled == 20 and len(group.members) == 2
            assert sorted(engine.calls[2:]) == [(0, 1, 4, [0] * 4), (1, 1, 4, [0] * 4)]

    run_virtual(main())


def test_a_part_survives_an_abort_of_the_attempt_after_it(run_virtual):
    engine = Tokenwise(lambda ticket: 10)

    async def main():
        policy = SchedulerPolicy(groups_per_batch=1, group_size=1, partial=PartialRollouts(stop_at_cut=False))
        async with RolloutScheduler(
            prompts=range(1),
            generate_part=engine.generate,
            grade=grade,
            replicas={"a": 2},
            policy=policy,
            clock=asyncio.get_running_loop().time,
        ) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            for mode in ("stop", "abort"):
                await asyncio.sleep(3.5)
                await scheduler.pause(mode)
                scheduler.resume()
            await waiting
        assert [kept for _, _, kept, _ in engine.calls] == [0, 3, 3]

    run_virtual(main())


def test_a_call_that_ignores_the_wish_to_stop_is_cancelled_after_its_deadline(run_virtual):
    async def generate(ticket, prompt, replica, part):
        await asyncio.sleep(100 if ticket.attempt == 0 else 1)
        return Generated(completion=None, tokens=1, oldest_version=0, truncated=False)

    async def main():
        policy = SchedulerPolicy(
            groups_per_batch=1,
            group_size=1,
            partial=PartialRollouts(stop_at_cut=False, stop_deadline_s=7.0),
        )
        async with RolloutScheduler(
            prompts=range(1),
            generate_part=generate,
            grade=grade,
            replicas={"a": 2},
            policy=policy,
            clock=asyncio.get_running_loop().time,
        ) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await asyncio.sleep(1)
            await scheduler.pause("stop")
            assert asyncio.get_running_loop().time() == 8.0
            scheduler.resume()
            batch = await waiting
            assert batch.failures == {"stop": 1} and len(batch.groups) == 1

    run_virtual(main())


async def whole(ticket, prompt, replica):
    raise TicketFailed("engine", "not called")


@pytest.mark.parametrize(
    ("functions", "partial", "said"),
    [
        ({}, None, "no function that generates .* allowed is generate alone"),
        ({"generate": whole}, PartialRollouts(stop_at_cut=False), "got generate .* allowed is generate_part"),
        ({"generate_part": whole}, None, "got generate_part with partial None, allowed is generate alone"),
        ({"generate": whole, "generate_part": whole}, None, "got generate and generate_part"),
    ],
)
def test_the_function_that_generates_has_to_fit_the_policy(functions, partial, said):
    policy = SchedulerPolicy(groups_per_batch=1, group_size=1, partial=partial)
    with pytest.raises(SchedulerError, match=said):
        RolloutScheduler(prompts=[], grade=grade, replicas={"a": 1}, policy=policy, **functions)


@pytest.mark.parametrize(("version", "tokens"), [(float("nan"), 1), (0, 1.5), (0, True), (None, 1)])
def test_a_span_without_whole_numbers_is_refused(version, tokens):
    with pytest.raises(SchedulerError, match=r"VersionSpan\.(version|tokens): got .*, allowed is an integer"):
        VersionSpan(version=version, tokens=tokens)


def test_spans_that_are_none_are_refused():
    with pytest.raises(SchedulerError, match=r"Generated\.spans: got .*, allowed are VersionSpan"):
        Generated(completion=None, tokens=3, oldest_version=0, truncated=False, spans=((0, 3),))
