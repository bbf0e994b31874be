"""How many groups more than a batch needs, from the tail."""

import numpy as np
import pytest
from roll_scheduler.simulator import (
    TRACES,
    EngineModel,
    LognormalLengths,
    Setting,
    SimulationError,
    Trainer,
    Workload,
    extra_share,
    measured_extra_share,
    run_policy,
)


def test_groups_that_outlast_the_rest_of_the_step_are_extra():
    longest = np.array([10, 20, 30, 61, 60, 10, 10, 10])
    assert extra_share(longest, rollout_s=40.0, train_s=40.0, token_s=1.0) == 1 / 8
    assert extra_share(longest, rollout_s=40.0, train_s=42.0, token_s=1.0) == 0.0
    assert extra_share(longest, rollout_s=0.0, train_s=0.0, token_s=1.0) == 0.25


def test_a_long_tail_gets_more_than_a_short_one():
    def share(trace, prompts, size, train_s):
        setting = Setting(
            workload=Workload(LognormalLengths(TRACES[trace], seed=0)),
            engines=(EngineModel(slots=64, base_s=0.010, sequence_s=50e-6),) * 16,
            groups_per_batch=prompts,
            group_size=size,
            trainer=Trainer(sample_s=train_s * 16 / (prompts * size)),
        )
        return measured_extra_share(setting)

    assert share("B", 256, 16, 130.0) < 0.02 < share("D", 128, 8, 65.0) < 0.12


def test_the_policy_that_measures_is_the_one_with_that_share():
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES["D"], seed=0)),
        engines=(EngineModel(slots=8, base_s=0.010, sequence_s=50e-6),) * 4,
        groups_per_batch=32,
        group_size=4,
        trainer=Trainer(sample_s=1.0),
    )
    share = measured_extra_share(setting)
    assert share > 0
    best = run_policy("core-best", setting, steps=3, trainer_devices=1)
    same = run_policy("core-elastic", setting, steps=3, trainer_devices=1, value=share)
    assert best.steps == same.steps and best.policy == "core-best"


@pytest.mark.parametrize("fields", [{"token_s": 0.0}, {"rollout_s": -1.0}, {"longest": np.array([])}])
def test_what_cannot_be_is_refused(fields):
    fields = {"longest": np.array([1]), "rollout_s": 1.0, "train_s": 1.0, "token_s": 1.0} | fields
    with pytest.raises(SimulationError, match="extra_share: got"):
        extra_share(fields.pop("longest"), **fields)
