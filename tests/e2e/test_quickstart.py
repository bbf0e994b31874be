"""The main job as the README gives it, at full length: it learns, and a control does not."""

from collections.abc import Callable

import pytest
from launched_run import Finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_quickstart_learns_to_sort_letters(launch: Callable[..., Finished]) -> None:
    done = launch(timeout=850)
    assert done.code == 0, done.err
    assert 0.30 <= done.summary["eval/accuracy/before"] <= 0.60
    assert done.summary["eval/accuracy/after"] >= 0.90
    assert done.summary["alarms"] == []


def test_a_control_with_learning_rate_zero_stays_flat(launch: Callable[..., Finished]) -> None:
    done = launch("stages.rlvr.learner.optimizer.learning_rate=0", "stages.rlvr.steps=8", timeout=850)
    assert done.code == 0, done.err
    assert abs(done.summary["eval/accuracy/after"] - done.summary["eval/accuracy/before"]) < 1e-9
