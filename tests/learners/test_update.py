"""Records of updates: light, and the same in another process."""

import math
import pickle

from roll_learners import SkippedUpdate, StepResult


def test_a_step_result_survives_the_way_to_another_process() -> None:
    skipped = SkippedUpdate(update=3, what="gradient", samples=(1, 5), loss=math.inf, gradient_norm=math.inf)
    result = StepResult(metrics={"actor/skipped_steps": 1.0}, updates=1, skipped=(skipped,))
    assert pickle.loads(pickle.dumps(result)) == result
