"""Attention signals agree with those of whole attention maps, for any chunking."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    HeadSignals,
    LearnerError,
    LocalAttention,
    Rhythm,
    RhythmSignals,
    Roles,
    Sample,
    choose_heads,
    head_signals,
    make_algorithm,
    middle_layers,
    policy_step,
    rhythm_weights,
)
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Make = Callable[..., Any]
RHYTHM = Rhythm(rule="coupled", window=3, nearest=1, farthest=4, heads=0.25, share=0.4)
SIZES = {
    "vocab_size": 25,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.5,
}


def qwen(attention: str) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, attn_implementation=attention))


def gemma(attention: str) -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    window = {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **window, attn_implementation=attention))


@pytest.fixture
def conversation() -> Sample:
    rng = np.random.default_rng(0)
    mask = np.array([0] * 5 + [1] * 6 + [0] * 3 + [1] * 5, np.bool_)
    return Sample(token_ids=rng.integers(0, 25, len(mask)).astype(np.int32), response_mask=mask)


def from_whole_maps(model: Any, sample: Sample, layers: list[int]) -> Any:
    with torch.no_grad():
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        maps = model(input_ids=ids, output_attentions=True).attentions
    responses = torch.from_numpy(np.flatnonzero(sample.response_mask))
    parts = [head_signals(maps[i][0][:, responses], responses, responses, RHYTHM) for i in layers]
    return choose_heads(HeadSignals(*(torch.cat(p) for p in zip(*parts, strict=True))), RHYTHM.heads)


@pytest.mark.parametrize("make", [qwen, gemma])
@pytest.mark.parametrize("numbers", [1, 500, 2**25])
def test_signals_are_those_of_the_whole_maps(make: Any, numbers: int, conversation: Sample) -> None:
    source = LocalAttention(make("sdpa"), layers=[1, 2, 4], numbers_at_a_time=numbers)
    expected = from_whole_maps(make("eager"), conversation, [1, 2, 4])
    empty = Sample(token_ids=conversation.token_ids, response_mask=np.zeros(19, np.bool_))
    got, nothing = source.signals([conversation, empty], RHYTHM)
    mask = conversation.response_mask
    np.testing.assert_allclose(got.waad[mask], expected.waad.numpy(), atol=1e-5)
    np.testing.assert_allclose(got.fai[mask], expected.fai.numpy(), atol=1e-5)
    assert not got.waad[~mask].any()
    assert not nothing.waad.any()
    assert not nothing.fai.any()


def test_no_more_attention_exists_at_a_time_than_was_allowed(
    conversation: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def watched(rows: torch.Tensor, *arguments: Any) -> HeadSignals:
        sizes.append(rows.numel())
        return head_signals(rows, *arguments)

    monkeypatch.setattr("roll_learners.attention.head_signals", watched)
    source = LocalAttention(qwen("sdpa"), layers=[1, 2], numbers_at_a_time=200)
    sizes.clear()
    source.signals([conversation], RHYTHM)
    # 4 heads x 19 tokens: two of the 11 response tokens at a time, in both layers.
    assert sizes == [2 * 4 * 19] * 5 + [4 * 19] + [2 * 4 * 19] * 5 + [4 * 19]


def test_layers_after_the_last_chosen_one_do_not_run(conversation: Sample) -> None:
    model = qwen("sdpa")
    source = LocalAttention(model, layers=[0, 2])
    for layer in model.model.layers[3:]:
        layer.forward = None  # would raise if it were called
    assert source.signals([conversation], RHYTHM)[0].waad.any()


def test_other_models_go_on_as_before(conversation: Sample, make_learner: Make) -> None:
    learner = make_learner()
    before = learner.logprobs([conversation])[0]
    source = LocalAttention(qwen("sdpa"), layers=2)
    source.signals([conversation], RHYTHM)
    assert np.array_equal(learner.logprobs([conversation])[0], before)


def test_layers_of_the_middle_third() -> None:
    assert middle_layers(36, 5) == [12, 15, 18, 21, 24]
    assert middle_layers(2, 5) == [0, 1]
    assert LocalAttention(qwen("sdpa")).layers == [2, 3, 4]


@pytest.mark.parametrize("layers", [[6], [-1], []])
def test_a_layer_that_is_not_there_is_named(layers: list[int]) -> None:
    with pytest.raises(LearnerError, match=r"of a model with layers 0 to 5"):
        LocalAttention(qwen("sdpa"), layers=layers)


def test_a_model_without_the_expected_attention_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=25, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(LearnerError, match="GPT2LMHeadModel"):
        LocalAttention(model, layers=[0])


def test_a_step_scales_advantages_by_the_rhythm(make_learner: Make, make_samples: Make) -> None:
    samples = make_samples((1, 0, 0, 1))
    source = LocalAttention(qwen("sdpa"), layers=2)
    learner = make_learner()
    given: dict[str, Any] = {}

    class Recorder:
        def update(self, samples: Any, objective: Any, **columns: Any) -> Any:
            given.update(zip(columns["indices"], columns["advantages"], strict=True))
            return learner.update(samples, objective, **columns)

        def logprobs(self, samples: Any) -> Any:
            return learner.logprobs(samples)

    algorithm = make_algorithm("dr_grpo", rhythm=RHYTHM)
    settings: dict[str, Any] = {"mini_batches": 1, "epochs": 1, "rng": np.random.default_rng(0)}
    policy_step(Recorder(), samples, algorithm, roles=Roles(attention=source), **settings)
    signals = source.signals(samples, RHYTHM)
    for i, sample in enumerate(samples):
        mask = sample.response_mask
        columns = (torch.from_numpy(column[mask]).double() for column in signals[i])
        weights = rhythm_weights(RhythmSignals(*columns), RHYTHM).numpy()
        np.testing.assert_allclose(given[i][mask], (sample.reward - 0.5) * weights, atol=1e-6)
    with pytest.raises(LearnerError, match=r"has a rhythm: policy_step needs roles\.attention"):
        policy_step(learner, samples, algorithm, **settings)
