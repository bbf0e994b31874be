"""Over-provisioning that adapts, in the core: it begins with none, learns, and keeps to its limits."""

from collections import Counter

import pytest
from roll_scheduler import Generate, Grade, OverProvision, SchedulerCore, SchedulerPolicy
from roll_scheduler.simulator import TRACES, EngineModel, LognormalLengths, Setting, Workload, simulate


@pytest.fixture
def setting():
    return Setting(
        workload=Workload(LognormalLengths(TRACES["D"], seed=0)),
        engines=(EngineModel(slots=32, base_s=0.010, sequence_s=50e-6),) * 4,
        groups_per_batch=16,
        group_size=8,
    )


def rollout_s(setting, extra, steps=16):
    result = simulate(setting, setting.policy(over_provision=extra), steps=steps)
    delivered = Counter(group for step in result.groups for group in step)
    assert max(delivered.values()) == 1
    assert all(step.samples == 16 * 8 for step in result.steps)
    return sum(step.rollout_s for step in result.steps)


def test_it_is_faster_than_none_and_than_a_quarter_more_of_everything(setting):
    none = rollout_s(setting, None)
    fixed = rollout_s(setting, OverProvision(groups=4, members=2, defer=True))
    adaptive = rollout_s(setting, OverProvision(groups=8, members=4, defer=True, adaptive=True))
    assert adaptive < fixed < none


def run_round(core, *, seconds):
    """Runs until a batch is complete; the tickets that were sent out."""
    core.open_batch()
    now = 0.0
    todo = list(core.refill(now))
    while core.room:
        todo += core.admit(now)
    running, sent = [], 0
    while (cut := core.take_batch(now)) is None:
        for command in todo:
            if isinstance(command, Generate):
                running.append((now + seconds(command.ticket), command.ticket.id, command.ticket))
                sent += 1
        todo = []
        running.sort()
        now, _, ticket = running.pop(0)
        for command in core.generated(
            ticket, tokens=1, oldest_version=core.version, truncated=False, now=now
        ):
            if isinstance(command, Grade):
                todo += core.graded(command.ticket, value=float(ticket.member % 2), now=now)
            else:
                todo.append(command)
    core.publish(core.version + 1, now)
    assert len(cut.deliveries) == 16
    return sent


def core_of(extra):
    policy = SchedulerPolicy(groups_per_batch=16, group_size=8, over_provision=extra, generate_deadline_s=1e9)
    return SchedulerCore(policy, replicas={"a": 1024})


def test_it_sends_out_no_more_than_its_limits(setting):
    lengths = setting.workload.lengths

    def seconds(ticket):
        return float(lengths.tokens(ticket.group, ticket.member))

    core = core_of(OverProvision(groups=2, members=1, adaptive=True))
    sent = [run_round(core, seconds=seconds) for _ in range(6)]
    assert sent[0] == 16 * 8
    assert 16 * 8 < max(sent) <= 18 * 9


def test_without_a_tail_it_sends_out_no_more_than_is_needed():
    core = core_of(OverProvision(groups=8, members=4, adaptive=True))
    assert [run_round(core, seconds=lambda ticket: 5.0) for _ in range(4)] == [16 * 8] * 4
