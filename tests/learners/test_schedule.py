"""Learning rates and the settings they come from."""

from typing import Any

import pytest
from roll_learners import LearnerError, OptimizerSettings, learning_rate


def rates(updates: tuple[int, ...], **settings: Any) -> list[float]:
    made = OptimizerSettings(learning_rate=1.0, **settings)
    return [learning_rate(made, update) for update in updates]


def test_constant_after_a_warm_up_that_begins_above_zero() -> None:
    assert rates((0, 1, 3, 4, 1000), warmup_steps=4) == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_linear_reaches_its_end_and_stays() -> None:
    settings = {"schedule": "linear", "warmup_steps": 2, "total_steps": 12, "min_lr_ratio": 0.5}
    assert rates((1, 2, 7, 12, 99), **settings) == [1.0, 1.0, 0.75, 0.5, 0.5]


def test_cosine_is_halfway_in_the_middle() -> None:
    settings = {"schedule": "cosine", "total_steps": 10, "min_lr_ratio": 0.1}
    assert rates((0, 5, 10, 11), **settings) == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1}, "learning_rate is -1: allowed is at least 0"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"eps": 0}, "eps is 0"),
        ({"max_grad_norm": 0}, "max_grad_norm is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"min_lr_ratio": 2}, "min_lr_ratio is 2"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"schedule": "cosine"}, "total_steps is None: allowed is more than warmup_steps"),
        ({"schedule": "linear", "warmup_steps": 5, "total_steps": 5}, "total_steps is 5"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        OptimizerSettings(**({"learning_rate": 1e-3} | settings))
