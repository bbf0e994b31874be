"""Where the seconds of a real step went."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_scheduler.simulator import SimulationError, attribute_step


def test_a_long_completion_that_starts_late_is_all_tail():
    # Two slots: 0-4 and 4-12 on one, 0-4 on the other, which is empty for the last 8 seconds.
    step = attribute_step(np.array([0.0, 0.0, 4.0]), np.array([4.0, 4.0, 12.0]), slots=2)
    assert (step.rollout_s, step.work_s, step.tail_s, step.empty_s) == (12.0, 8.0, 4.0, 0.0)
    assert (step.critical_path_s, step.bound_s, step.of_bound) == (8.0, 8.0, 8 / 12)
    assert (step.step_s, step.other_s) == (12.0, 0.0)


def test_slots_that_wait_for_work_are_empty_and_not_tail():
    step = attribute_step(np.array([12.0, 16.0]), np.array([14.0, 18.0]), slots=1, began=10.0)
    assert (step.rollout_s, step.work_s, step.empty_s, step.tail_s) == (8.0, 4.0, 4.0, 0.0)


def test_what_follows_the_rollout_is_told_apart():
    step = attribute_step(
        np.array([0.0]), np.array([5.0]), slots=1, graded=6.5, train_s=3.0, sync_s=0.5, step_s=11.0
    )
    assert (step.reward_s, step.train_s, step.sync_s, step.other_s) == (1.5, 3.0, 0.5, 1.0)
    assert step.metrics()["scheduler/step/of_bound"] == 1.0
    assert step.metrics()["scheduler/step/reward_s"] == 1.5


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), max_size=30),
    st.integers(1, 5),
)
def test_the_parts_add_up_and_no_schedule_is_below_its_bound(wanted, slots):
    """Greedy on so many slots, so that the records are of a schedule that can be."""
    free, starts, ends = [0.0] * slots, [], []
    for arrives, seconds in sorted(wanted):
        slot = free.index(min(free))
        starts.append(max(free[slot], arrives))
        ends.append(starts[-1] + seconds)
        free[slot] = ends[-1]
    step = attribute_step(np.array(starts), np.array(ends), slots=slots, began=0.0)
    assert step.work_s + step.empty_s + step.tail_s == pytest.approx(step.rollout_s)
    assert step.bound_s <= step.rollout_s + 1e-9
    assert min(step.empty_s, step.tail_s) >= -1e-9


@pytest.mark.parametrize(
    ("starts", "ends", "fields", "says"),
    [
        ([0.0], [1.0], {"slots": 0}, "got 0 slots"),
        ([0.0], [1.0, 2.0], {"slots": 1}, r"shape \(2,\)"),
        ([2.0], [1.0], {"slots": 1}, "ended before it"),
        ([0.0], [1.0], {"slots": 1, "began": 0.5}, "began <= start"),
        ([0.0], [np.nan], {"slots": 1}, "not finite"),
        ([0.0], [1.0], {"slots": 1, "train_s": -1.0}, "negative"),
    ],
)
def test_records_that_cannot_be_are_refused(starts, ends, fields, says):
    with pytest.raises(SimulationError, match=says):
        attribute_step(np.array(starts), np.array(ends), **fields)
