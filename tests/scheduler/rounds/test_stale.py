"""Groups that are too old for training, and bounds that are no whole number."""

import asyncio
import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roll_scheduler import OverProvision, SchedulerError, SchedulerPolicy, SchedulerSnapshot, StarvationError


def test_a_stale_group_is_generated_again_with_the_current_version(core_run):
    run = core_run(stale="requeue")
    run.admit()
    run.finish(0, 1)
    run.generate(2)
    run.do(run.core.publish(1, run.now))
    assert run.dropped == [] and run.anew == [0, 1]
    assert (3, "requeued") in run.aborted
    again = [run.running[id].ticket for id in range(4)]
    assert [ticket.attempt for ticket in again] == [1] * 4
    run.finish(0, 1, 2, 3)
    assert run.take() == [0, 1]
    assert run.core.ledger.ends == {"requeued": 4, "delivered": 4}
    assert run.value("requeued_groups") == 2


def test_a_requeued_group_goes_before_those_that_have_not_begun(core_run):
    run = core_run(stale="requeue", max_staleness=1, replicas={"a": 2})
    run.admit()
    run.generate(0)
    run.do(run.core.publish(2, run.now))
    assert sorted(run.running) == [0, 2]
    run.generate(2)
    assert sorted(run.running) == [0, 1]


def test_engines_that_never_get_new_weights_starve_the_batch_and_do_not_hang_it(core_run):
    run = core_run(stale="requeue", groups_per_batch=1, max_refills=3)
    run.do(run.core.publish(1, run.now))
    run.admit()
    for _ in range(4):
        run.generate(next(iter(run.running)), version=0)
    with pytest.raises(StarvationError, match=r"4 groups were refused .*\(requeued 4\), allowed are 3"):
        run.take()


def half(core_run, **policy):
    """Half a batch of four may be one version old."""
    return core_run(**{"groups_per_batch": 4, "group_size": 1, "max_staleness": 0.5, **policy})


def test_a_fraction_admits_that_share_of_a_batch_ahead(core_run):
    run = half(core_run)
    run.admit()
    assert sorted(run.running) == [0, 1, 2, 3, 4, 5]
    run.finish(0, 1, 2, 3)
    assert run.take() == [0, 1, 2, 3]
    assert run.core.room == 0, "the batch in training counts"
    run.next_version()
    assert sorted(run.running) == [4, 5, 6, 7, 8, 9]
    run.finish(6, 7, 8, 9)
    assert run.take() is None, "groups 4 and 5 would be too old for the batch after"
    run.finish(4, 5)
    assert run.take() == [4, 5, 6, 7]


def test_no_more_than_the_share_of_a_batch_is_of_the_oldest_version(core_run):
    run = half(core_run, max_staleness=0.25)
    run.admit()
    assert len(run.running) == 5
    run.finish(0, 1, 2)
    run.do(run.core.publish(1, run.now))
    run.finish(3, 4)
    assert run.take() is None, "one group of version 0 may go, and there are two of version 1"
    run.admit()
    assert run.dropped == [(1, "stale"), (2, "stale")], "they alone were in the way"
    run.finish(5, 6)
    assert run.take() == [0, 3, 4, 5]


def test_the_bound_holds_after_a_resume(core_run):
    run = half(core_run, core={"resume": SchedulerSnapshot(version=7, first_group=20)})
    run.admit()
    assert len(run.running) == 6
    run.finish(20, version=5)
    assert run.dropped == [(20, "stale")]


@pytest.mark.parametrize("value", [-0.5, 1e9, float("nan"), float("inf"), True, "1"])
def test_a_bound_that_is_no_number_is_refused(value):
    with pytest.raises(SchedulerError, match=r"SchedulerPolicy\.max_staleness: got .*, allowed is a number"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, max_staleness=value)


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(SchedulerError, match=r"stale: got 'keep', allowed is 'drop' or 'requeue'"):
        SchedulerPolicy(groups_per_batch=1, group_size=1, stale="keep")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bound=st.sampled_from([0, 0.25, 0.5, 1, 1.5, 2]),
    size=st.integers(1, 4),
    extra=st.integers(0, 2),
    order=st.randoms(use_true_random=False),
    publications=st.sampled_from([1, 1, 2]),
)
def test_requeueing_trains_on_every_prompt_once_whatever_the_order(
    bound, size, extra, order, publications, core_run
):
    """Even if several versions are published for each batch."""
    extra = min(extra, size)
    run = core_run(
        groups_per_batch=size,
        group_size=1,
        max_staleness=bound,
        stale="requeue",
        replicas={"a": 3},
        max_refills=10_000,
        over_provision=OverProvision(groups=extra) if extra and bound else None,
    )
    prompts, trained = 14, Counter()
    for _ in range(3000):
        run.do(run.core.refill(run.now))
        while run.core.room and run.core.next_group < prompts:
            run.do(run.core.admit(run.now))
        if run.core.next_group == prompts:
            run.core.exhaust()
        before = run.core.version
        if (batch := run.take()) is not None:
            trained.update(batch)
            if not batch:
                break
            run.core.open_batch()
            if order.random() < 0.9:
                run.do(run.core.publish(before + publications, run.now))
        elif run.running:
            run.finish(order.choice(sorted(run.running)))
    assert trained == Counter(range(prompts))


def test_a_batch_of_a_fraction_never_has_more_stale_groups_than_that(core_run):
    run = half(core_run, max_staleness=1.5)
    stale = []
    for _ in range(12):
        run.admit()
        while (batch := run.take()) is None:
            run.finish(min(run.running, key=lambda id: (-(id % 5), id)))
        stale.append(run.value("staleness"))
        run.next_version()
        assert len(batch) == 4
    assert max(stale) <= 1.5
    assert math.isclose(sum(stale) / len(stale), 1.0, abs_tol=0.6)


@pytest.mark.parametrize("bound", [0.5, 1, 1.5, 2])
def test_slow_prompts_are_neither_dropped_nor_starved(bound, run_virtual, work):
    """Every fourth prompt takes ten steps."""
    trained = Counter()

    async def main():
        work.seconds = lambda ticket: 10.0 if ticket.group % 4 == 3 else 1.0
        policy = SchedulerPolicy(groups_per_batch=2, group_size=1, max_staleness=bound)
        async with work.scheduler(policy, prompts=20) as scheduler:
            while (batch := await scheduler.next_batch()).groups:
                trained.update(group.id for group in batch.groups)
                assert not batch.dropped
                await asyncio.sleep(0.5)
                work.version += 1
                scheduler.publish(work.version)

    run_virtual(main())
    assert trained == Counter(range(20))
