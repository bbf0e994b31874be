"""Supervised steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from roll_learners import LearnerError, Sample, supervised_step


def test_the_loss_is_the_mean_over_all_trained_tokens(
    make_learner: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    learner, samples = make_learner(micro_batch_tokens=20), make_samples()
    before = np.concatenate(
        [c[s.response_mask] for c, s in zip(learner.logprobs(samples), samples, strict=True)]
    )
    metrics = supervised_step(learner, samples)
    assert metrics["actor/nll"] == pytest.approx(-before.mean())
    assert metrics["actor/lr"] == 1e-2
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/skipped_steps"] == 0
    assert metrics["response_length/max"] == max(sample.response_tokens for sample in samples)


def test_demonstrations_without_a_trained_token_are_refused(make_learner: Callable[..., Any]) -> None:
    empty = Sample.from_completion(np.array([1, 2], np.int32), np.zeros(0, np.int32))
    with pytest.raises(LearnerError, match="none of 2 samples has a trained token"):
        supervised_step(make_learner(), [empty, empty])
