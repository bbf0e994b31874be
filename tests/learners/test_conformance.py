"""The local learner conforms, and the suite notices learners that do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import LocalLearner, OptimizerSettings, check_learner
from roll_learners.batch import total_counts

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("dtype", "tolerance", "eps"), [(torch.float64, 1e-9, 1e-8), (torch.float32, 1e-4, 1e-3)]
)
def test_the_local_learner_conforms(
    make_learner: Make, dtype: torch.dtype, tolerance: float, eps: float
) -> None:
    results = check_learner(
        lambda tokens: make_learner(dtype=dtype, eps=eps, micro_batch_tokens=tokens),
        vocab_size=25,
        tolerance=tolerance,
    )
    assert len(results) == 6
    assert [result for result in results if not result.passed] == []


class MeanOfMeans(LocalLearner):
    """Divides by the tokens of each half, as gradient accumulation often does by mistake."""

    def update(self, samples: Any, objective: Any, *, totals: Any = None, **columns: Any) -> Any:
        return super().update(
            samples, objective, totals=total_counts(samples[: len(samples) // 2]), **columns
        )


class KeepsGoing(LocalLearner):
    """Takes the step whatever the gradient is."""

    def update(self, samples: Any, objective: Any, **columns: Any) -> Any:
        columns["advantages"] = [np.nan_to_num(column) for column in columns["advantages"]]
        return super().update(samples, objective, **columns)


@pytest.mark.parametrize(("kind", "failing"), [(MeanOfMeans, "sample order"), (KeepsGoing, "not finite")])
def test_a_learner_that_does_not_conform_is_found(make_model: Make, kind: Any, failing: str) -> None:
    def make(tokens: int) -> Any:
        return kind(make_model(), optimizer=OptimizerSettings(learning_rate=1e-2), micro_batch_tokens=tokens)

    failed = [
        result.name for result in check_learner(make, vocab_size=25, tolerance=1e-9) if not result.passed
    ]
    assert any(failing in name for name in failed)
