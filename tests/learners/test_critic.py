"""The critic of one process."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import LearnerError, LocalCritic, OptimizerSettings, Sample, ValueObjective
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification

Make = Callable[..., Any]


def targets(samples: list[Sample]) -> list[np.ndarray]:
    return [np.linspace(-1, 1, len(sample.token_ids)) for sample in samples]


def weights(critic: LocalCritic) -> list[torch.Tensor]:
    return [tensor.clone() for _, tensor in critic.export_weights()]


def test_a_value_is_that_of_the_state_before_its_token(make_critic: Make, make_samples: Make) -> None:
    critic, samples = make_critic(), make_samples()
    for sample, values in zip(samples, critic.values(samples), strict=True):
        with torch.no_grad():
            ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
            whole = critic.model(input_ids=ids).logits[0, :, 0].numpy()
        np.testing.assert_allclose(values[1:], np.where(sample.response_mask[1:], whole[:-1], 0), atol=1e-12)
    scores = critic.scores(samples[:2])
    for sample, score in zip(samples[:2], scores, strict=True):
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            assert critic.model(input_ids=ids).logits[0, -1, 0].item() == pytest.approx(score)


def test_a_value_does_not_depend_on_the_token_it_stands_before(make_critic: Make, make_samples: Make) -> None:
    critic, (sample, *_) = make_critic(), make_samples()
    changed = sample.token_ids.copy()
    changed[-1] = (changed[-1] + 1) % 25
    other = Sample(token_ids=changed, response_mask=sample.response_mask)
    assert np.array_equal(critic.values([sample])[0], critic.values([other])[0])


def test_the_update_does_not_depend_on_micro_batches_or_order(make_critic: Make, make_samples: Make) -> None:
    samples, results = make_samples(), []
    returns = targets(samples)
    dirty = [np.where(s.response_mask, r, np.nan) for s, r in zip(samples, returns, strict=True)]
    for tokens, order, columns in (
        (4096, 1, returns),
        (17, 1, returns),
        (4096, -1, returns),
        (4096, 1, dirty),
    ):
        critic = make_critic(micro_batch_tokens=tokens)
        critic.update(
            samples[::order],
            ValueObjective(clip=0.2),
            returns=columns[::order],
            old_values=[c + 0.1 for c in columns[::order]],
        )
        results.append(weights(critic))
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=1e-9)


def test_a_critic_learns_its_returns(make_critic: Make, make_samples: Make) -> None:
    critic, samples = make_critic(learning_rate=2e-2), make_samples()
    returns = [np.full(len(sample.token_ids), sample.reward) for sample in samples]
    losses = [critic.update(samples, ValueObjective(), returns=returns).metrics["vf_loss"] for _ in range(80)]
    assert losses[-1] < 0.1 * losses[0]


def test_returns_that_are_not_finite_change_nothing_and_are_named(
    make_critic: Make, make_samples: Make
) -> None:
    critic, samples = make_critic(), make_samples()
    returns, before = targets(samples), weights(critic)
    returns[3] = np.full_like(returns[3], np.nan)
    result = critic.update(samples, ValueObjective(), returns=returns)
    assert result.skipped is not None
    assert result.skipped.samples == (3,)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(critic), strict=True))


def test_state_goes_on_where_it_stood(make_critic: Make, make_samples: Make) -> None:
    first, second, samples = make_critic(), make_critic(), make_samples()
    first.update(samples, ValueObjective(), returns=targets(samples))
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for critic in (first, second):
        critic.update(samples, ValueObjective(), returns=targets(samples))
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


def test_a_saved_critic_is_a_model_of_transformers(
    make_critic: Make, make_samples: Make, tmp_path: Any
) -> None:
    critic, samples = make_critic(dtype=torch.float32), make_samples()
    critic.save_pretrained(tmp_path)
    loaded = LocalCritic(
        Qwen3ForTokenClassification.from_pretrained(tmp_path),
        optimizer=OptimizerSettings(learning_rate=1e-3),
    )
    for a, b in zip(critic.values(samples), loaded.values(samples), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("labels", [None, 2])
def test_a_model_without_one_output_is_refused(labels: int | None) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(**sizes, intermediate_size=8, num_key_value_heads=1, num_labels=labels or 2)
    model = Qwen3ForCausalLM(config) if labels is None else Qwen3ForTokenClassification(config)
    with pytest.raises(LearnerError, match=r"no linear `score` with one output: load it with"):
        LocalCritic(model, optimizer=OptimizerSettings(learning_rate=1e-3))


def test_a_micro_batch_of_nothing_is_refused(make_critic: Make) -> None:
    with pytest.raises(LearnerError, match="micro_batch_tokens is 0"):
        make_critic(micro_batch_tokens=0)
