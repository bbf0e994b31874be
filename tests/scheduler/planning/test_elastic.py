"""When replicas are lent to the trainer and taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import SchedulerError
from roll_scheduler.planning.elastic import ElasticLoad, ElasticPlan, ElasticPolicy, Lend, Reclaim

FREE = ElasticPolicy(switch_s=0.0, sequence_share=0.0)


def plan(replicas=4, *, slots=8, policy=FREE, overlap=False):
    return ElasticPlan(policy, {f"r{index}": slots for index in range(replicas)}, overlap=overlap)


def load(*running, queued=0, trainable_s=100.0, coming_s=100.0):
    counts = {f"r{index}": count for index, count in enumerate(running)}
    return ElasticLoad(running=counts, queued=queued, trainable_s=trainable_s, coming_s=coming_s)


def test_the_tail_is_packed_and_the_emptiest_replicas_are_lent():
    assert plan().decide(load(5, 1, 6, 2), 0.0) == [Lend(replica="r1"), Lend(replica="r3")]


def test_nothing_is_lent_while_all_slots_are_needed_or_there_is_nothing_to_train_on():
    assert plan().decide(load(8, 8, 8, 7), 0.0) == []
    assert plan().decide(load(8, 8, 8, 8, queued=3), 0.0) == []
    assert plan().decide(load(1, 1, 1, 1, trainable_s=0.0), 0.0) == []


def test_a_device_is_not_lent_for_less_than_changing_sides_costs():
    costly = ElasticPolicy(switch_s=10.0, sequence_share=0.0)
    assert plan(policy=costly).decide(load(1, 1, 1, 1, trainable_s=19.0), 0.0) == []
    assert len(plan(policy=costly).decide(load(1, 1, 1, 1, trainable_s=45.0), 0.0)) == 2


def test_packing_stops_where_slower_iterations_cost_more_than_the_trainer_gains():
    steep = ElasticPolicy(switch_s=0.0, sequence_share=1.0)
    assert len(plan(policy=FREE).decide(load(2, 2, 2, 2), 0.0)) == 3
    assert len(plan(policy=steep).decide(load(2, 2, 2, 2), 0.0)) == 1


def test_the_last_replica_is_lent_only_when_no_ticket_is_left():
    few = plan()
    assert len(few.decide(load(1, 0, 0, 0), 0.0)) == 3
    assert few.decide(load(1, 0, 0, 0), 1.0) == []
    assert few.decide(load(0, trainable_s=5.0, coming_s=0.0), 2.0) == [Lend(replica="r0")]


def test_all_devices_come_back_for_the_next_batch():
    each = plan()
    each.decide(load(0, 0, 0, 0, coming_s=0.0), 0.0)
    assert each.step_ended(100.0, 50.0) == [Reclaim(replica=f"r{index}") for index in range(4)]
    assert each.lent == ()


def test_tickets_that_are_sent_again_get_a_replica_back():
    each = plan()
    each.decide(load(0, 0, 0, 0), 0.0)
    assert each.decide(load(queued=9, trainable_s=50.0), 1.0) == [
        Reclaim(replica="r0"),
        Reclaim(replica="r1"),
    ]


def test_the_trainer_gets_as_many_as_it_needs_to_end_with_the_rollout():
    each = plan(8, slots=1)
    each.step_ended(400.0, 100.0)
    # 50 s are left of a step like the one before, in which 100 s of training take two devices.
    idle = load(1, *[0] * 7, trainable_s=100.0, coming_s=0.0)
    assert len(each.decide(idle, 150.0)) == 2


def test_with_overlap_full_replicas_are_lent_too_and_idle_ones_given_back():
    each = plan(8, overlap=True)
    full = load(*[8] * 8, queued=1, trainable_s=400.0, coming_s=0.0)
    assert each.decide(full, 0.0) == []
    each.step_ended(400.0, 100.0)
    lent = each.decide(full, 100.0)
    assert 4 <= len(lent) <= 7
    dry = load(*[8] * 4, queued=1, trainable_s=0.0, coming_s=200.0)
    assert each.decide(dry, 150.0) == [Reclaim(replica=lent[0].replica)]


def test_a_replica_that_died_is_left_alone_until_it_is_found():
    each = plan(2)
    each.lost("r1")
    assert each.decide(load(1, 0), 0.0) == []
    each.found("r1", 8)
    assert each.decide(load(1, 0), 0.0) == [Lend(replica="r1")]
    with pytest.raises(SchedulerError, match=r"lost: got 'r9', known are \['r0', 'r1'\]"):
        each.lost("r9")
    with pytest.raises(SchedulerError, match="found: got 'r0' with 8 slots"):
        each.found("r0", 8)


@pytest.mark.parametrize(
    "fields", [{"switch_s": -1.0}, {"sequence_share": float("nan")}, {"least_work_s": -2.0}]
)
def test_policies_that_cannot_be_are_refused(fields):
    with pytest.raises(SchedulerError, match="ElasticPolicy"):
        ElasticPolicy(**fields)


def test_a_plan_without_replicas_is_refused():
    with pytest.raises(SchedulerError, match=r"ElasticPlan: got replicas \{\}"):
        ElasticPlan(FREE, {})


@settings(max_examples=300, deadline=None)
@given(data=st.data(), overlap=st.booleans(), switch_s=st.sampled_from([0.0, 1.0, 20.0]))
def test_no_load_makes_it_lend_the_last_replica_or_change_its_mind(data, overlap, switch_s):
    """Whatever the loads are: tickets keep a replica with slots for all, and the same load asked again and
    again comes to rest."""
    slots = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    names = {f"r{index}": count for index, count in enumerate(slots)}
    each = ElasticPlan(ElasticPolicy(switch_s=switch_s), names, overlap=overlap)
    now = 0.0
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            each.step_ended(data.draw(st.floats(0, 500)), now)
        tickets = data.draw(st.integers(0, 2 * sum(slots)))
        work = data.draw(st.tuples(st.floats(0, 300), st.floats(0, 300)))
        changes = []
        for _ in range(2 * len(names) + 2):
            up = [name for name in names if name not in each.lent]
            running, rest = {}, tickets
            for name in up:
                running[name] = min(names[name], rest)
                rest -= running[name]
            asked = ElasticLoad(running=running, queued=rest, trainable_s=work[0], coming_s=work[1])
            changed = each.decide(asked, now)
            if not changed:
                break
            changes += changed
            up = [name for name in names if name not in each.lent]
            assert up or not tickets
            if not overlap and isinstance(changed[0], Lend) and tickets:
                assert sum(names[name] for name in up) >= tickets
        assert not changed, f"still changing its mind after {len(changes)} changes"
        now += data.draw(st.floats(0, 100))
