"""What callers' functions return."""

import dataclasses
import json

import numpy as np
import pytest
from roll_scheduler import Generated, Graded, SchedulerError, SchedulerPolicy


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(SchedulerError, match=r"Generated\.tokens: got -1, allowed is >= 0"):
        Generated(completion=None, tokens=-1, oldest_version=0, truncated=False)


def test_an_unfinished_result_without_partial_rollouts_ends_the_batch(run_virtual, work):
    async def generate(ticket, prompt, replica):
        return Generated(completion=None, tokens=3, oldest_version=0, truncated=False, finished=False)

    async def main():
        work.generate = generate
        async with work.scheduler(SchedulerPolicy(groups_per_batch=1, group_size=1)) as scheduler:
            with pytest.raises(
                SchedulerError, match=r"ticket 0 was stopped.* only with SchedulerPolicy\.partial"
            ):
                await scheduler.next_batch()

    run_virtual(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", float("nan")),
        ("tokens", 3.5),
        ("tokens", True),
        ("tokens", "3"),
        ("oldest_version", None),
        ("oldest_version", -1),
        ("oldest_version", float("nan")),
        ("truncated", None),
        ("finished", "yes"),
    ],
)
def test_what_is_no_result_is_refused_by_name(field, value):
    with pytest.raises(SchedulerError, match=rf"Generated\.{field}: got .*, allowed is"):
        Generated(**{"completion": None, "tokens": 1, "oldest_version": 0, "truncated": False, field: value})


@pytest.mark.parametrize("value", [None, "1.0", [1.0], "high", np.zeros(2), 10**400])
def test_a_reward_that_is_no_number_is_refused(value):
    with pytest.raises(SchedulerError, match=r"Graded\.value: got .*, allowed is a number"):
        Graded(score=None, value=value)


def test_numbers_of_another_library_become_pythons_and_survive_json(run_virtual, work):
    async def generate(ticket, prompt, replica):
        long = np.int64(7) > np.int64(9)
        return Generated(completion=None, tokens=np.int64(3), oldest_version=np.int32(0), truncated=long)

    async def main():
        work.generate = generate
        work.values = lambda ticket: np.float32(ticket.member)
        async with work.scheduler(SchedulerPolicy(groups_per_batch=2, group_size=2)) as scheduler:
            member = (await scheduler.next_batch()).groups[0].members[1]
            assert type(member.generated.tokens) is type(member.generated.oldest_version) is int
            assert member.generated.truncated is False and type(member.graded.value) is float
            scheduler.publish(np.int64(4))
            saved = json.loads(json.dumps(dataclasses.asdict(scheduler.snapshot())))
        assert saved["version"] == 4 and saved["totals"]["tokens"] == 12

    run_virtual(main())


def test_a_core_that_is_told_another_librarys_numbers_gives_a_snapshot_for_json(core_run):
    run = core_run()
    run.admit()
    run.finish(0, tokens=np.int64(5))
    assert json.loads(json.dumps(dataclasses.asdict(run.core.snapshot())))["totals"]["tokens"] == 5


@pytest.mark.parametrize("version", [float("nan"), 1.5, "2", None, True])
def test_a_version_that_is_no_integer_is_not_published(core_run, version):
    run = core_run()
    with pytest.raises(SchedulerError, match=r"publish: got .*, allowed is an integer"):
        run.core.publish(version, 0.0)
    assert run.core.version == 0
