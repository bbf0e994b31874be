"""Where the seconds of a real step went, from when requests were sent and when they ended."""

import asyncio

import pytest
from roll_launch.pipelines.rollout_clock import RolloutClock


class _Time:
    """A clock that a test moves."""

    now = 100.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    clock = _Time()
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: clock.now)
    return clock


def _timing(step_s: float, train_s: float = 0.0, sync_s: float = 0.0) -> dict[str, float]:
    return {
        "timing_s/step": step_s,
        "timing_s/update_actor": train_s,
        "timing_s/weight_sync": sync_s,
    }


def _generate(clock: RolloutClock, time: _Time, replica: str, ends: list[float]) -> None:
    """Requests that are sent now and end at these times."""
    opened = [clock.generating(replica) for _ in ends]
    for each in opened:
        each.__enter__()
    for each, end in sorted(zip(opened, ends, strict=True), key=lambda pair: pair[1]):
        time.now = end
        each.__exit__(None, None, None)


async def test_a_request_that_waits_for_a_row_holds_it_from_when_one_before_it_ended(time: _Time) -> None:
    clock = RolloutClock(rows=2)
    clock.begin_step()
    # The third gets the row of the first, at 104, and runs for 2 s.
    _generate(clock, time, "a", [104.0, 110.0, 106.0])
    clock.end_rollout()
    found = clock.metrics(1, _timing(10.0))
    assert found["scheduler/step/critical_path_s"] == 10.0
    assert found["scheduler/step/work_s"] == (4 + 10 + 2) / 2
    assert found["scheduler/step/tail_s"] == 2.0
    assert found["scheduler/step/of_bound"] == 1.0


async def test_seconds_of_a_step_add_up(time: _Time) -> None:
    clock = RolloutClock(rows=1)
    clock.begin_step()
    time.now = 101.0
    _generate(clock, time, "a", [103.0, 108.0])
    time.now = 109.0
    clock.graded()
    clock.end_rollout()
    found = clock.metrics(2, _timing(15.0, train_s=4.0, sync_s=1.5))
    parts = ("empty", "work", "tail", "reward", "train", "sync", "other")
    assert sum(found[f"scheduler/step/{part}_s"] for part in parts) == pytest.approx(15.0)
    assert found["scheduler/step/reward_s"] == 1.0
    assert found["scheduler/step/other_s"] == 0.5


async def test_what_ran_before_the_step_and_goes_on_after_it_counts_within_it(time: _Time) -> None:
    clock = RolloutClock(rows=4)
    with clock.generating("a"):
        time.now = 105.0
        clock.begin_step()
        time.now = 107.0
        clock.end_rollout()
        found = clock.metrics(1, _timing(2.0))
    assert found["scheduler/step/rollout_s"] == 2.0
    assert found["scheduler/step/critical_path_s"] == 2.0


async def test_a_step_without_a_generation_says_nothing_wrong(time: _Time) -> None:
    clock = RolloutClock(rows=4)
    clock.begin_step()
    clock.end_rollout()
    assert clock.metrics(0, _timing(0.0))["scheduler/step/of_bound"] == 1.0
