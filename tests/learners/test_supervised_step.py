"""Supervised steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import LearnerError, Sample, supervised_step


def test_the_loss_is_the_mean_over_all_trained_tokens(
    make_learner: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    learner, samples = make_learner(micro_batch_tokens=20), make_samples()
    before = np.concatenate(
        [c[s.response_mask] for c, s in zip(learner.logprobs(samples), samples, strict=True)]
    )
    result = supervised_step(learner, samples)
    metrics = result.metrics
    assert (result.updates, result.skipped) == (1, ())
    assert metrics["actor/nll"] == pytest.approx(-before.mean())
    assert metrics["actor/lr"] == 1e-2
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/skipped_steps"] == 0
    assert metrics["response_length/max"] == max(sample.response_tokens for sample in samples)


def test_a_demonstration_that_is_not_finite_is_named_and_no_weight_moves(
    make_learner: Callable[..., Any], make_model: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    model, samples = make_model(tied=False), make_samples()
    poisoned = int(samples[5].token_ids[0])
    for i, sample in enumerate(samples):
        if i != 5:
            sample.token_ids[sample.token_ids == poisoned] = (poisoned + 1) % 25
    with torch.no_grad():
        model.model.embed_tokens.weight[poisoned] = np.nan
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = supervised_step(make_learner(model=model), samples)
    assert result.updates == 0
    assert [(each.what, each.samples) for each in result.skipped] == [("loss", (5,))]
    assert result.metrics["actor/skipped_steps"] == 1
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_demonstrations_without_a_trained_token_are_refused(make_learner: Callable[..., Any]) -> None:
    empty = Sample.from_completion(np.array([1, 2], np.int32), np.zeros(0, np.int32))
    with pytest.raises(LearnerError, match="none of 2 samples has a trained token"):
        supervised_step(make_learner(), [empty, empty])
