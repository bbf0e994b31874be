"""What callers' functions return."""

import pytest
from roll_scheduler import Generated, SchedulerError, SchedulerPolicy


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
