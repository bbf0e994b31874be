"""Log-probs at trained tokens are those of the model's own logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import roll_learners.forward as forward
import torch
from roll_learners import (
    LearnerError,
    LocalScorer,
    PolicyObjective,
    Sample,
    SupervisedObjective,
    entropy,
    make_algorithm,
)
from roll_learners.batch import MicroBatch, collate, total_counts
from roll_learners.forward import check_model, runs_shared_rows, score_tokens
from roll_learners.gradient import accumulate_gradient
from roll_learners.rows import plan_rows
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3ForCausalLM,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 25,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "initializer_range": 0.5,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(head_dim=8, final_logit_softcapping=2.0, **SHAPE)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(logits_scaling=4.0, **SHAPE)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(logit_scale=0.25, **SHAPE)),
}
Make = Callable[..., Any]


def one_micro_batch(samples: list[Sample], *, shared: bool = False, pad_to: int = 0) -> MicroBatch:
    """All samples as one micro-batch."""
    rows = plan_rows(samples, budget=4096, sharing=64 if shared else None)
    return collate(samples, rows, device="cpu", pad_to=pad_to)


def expected_scores(
    model: Any, samples: list[Sample], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One unpadded pass of the whole model a sample."""
    logprobs, entropies = [], []
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids).long()[None]
        logits = model(input_ids=ids).logits[0, :-1] / temperature
        trained = torch.from_numpy(sample.response_mask)[1:]
        logprobs.append(logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[trained, 0])
        entropies.append(entropy(logits[trained]))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_single_unpadded_passes(
    make_model: Make, make_samples: Make, temperature: float
) -> None:
    model, samples = make_model(), make_samples()
    scores = score_tokens(model, one_micro_batch(samples), temperature=temperature, entropy="metric")
    logprobs, entropies = expected_scores(model, samples, temperature)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores.entropy, entropies, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_other_families_are_scored_as_they_score_themselves(family: str, make_samples: Make) -> None:
    torch.manual_seed(0)
    model, samples = FAMILIES[family]().double().eval(), make_samples()
    check_model(model)
    scores = score_tokens(model, one_micro_batch(samples), temperature=1.0)
    torch.testing.assert_close(scores.logprobs, expected_scores(model, samples, 1.0)[0], rtol=0, atol=1e-10)


class DoubledLogits(Qwen3ForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


def test_a_model_that_changes_its_logits_unseen_is_refused(make_model: Make) -> None:
    model = DoubledLogits(make_model().config)
    with pytest.raises(LearnerError, match="DoubledLogits changes its logits after the head"):
        check_model(model)


def test_padding_changes_neither_value_nor_gradient(make_model: Make, make_samples: Make) -> None:
    results = []
    for pad_to in (0, 64):
        model = make_model()
        batch = one_micro_batch(make_samples(), pad_to=pad_to)
        scores = score_tokens(model, batch, temperature=1.0, entropy="gradient")
        assert scores.entropy is not None
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        results.append([scores.logprobs.detach(), *(p.grad for p in model.parameters())])
    for plain, wide in zip(*results, strict=True):
        torch.testing.assert_close(plain, wide, rtol=0, atol=1e-11)


@pytest.mark.parametrize("tied", [True, False])
def test_chunks_of_logits_change_neither_value_nor_gradient(
    make_model: Make, make_samples: Make, tied: bool
) -> None:
    results = []
    for logits_per_chunk in (2**25, 25 * 7):
        model = make_model(tied=tied)
        scores = score_tokens(
            model,
            one_micro_batch(make_samples()),
            temperature=0.7,
            entropy="gradient",
            logits_per_chunk=logits_per_chunk,
        )
        assert scores.entropy is not None
        (scores.logprobs.square().sum() + scores.entropy.sum()).backward()
        results.append([scores.logprobs.detach(), *(p.grad for p in model.parameters())])
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=0, atol=1e-11)


def test_chunks_work_without_a_gradient_and_without_entropy(make_model: Make, make_samples: Make) -> None:
    model, batch = make_model(), one_micro_batch(make_samples())
    with torch.no_grad():
        whole = score_tokens(model, batch, temperature=1.0)
        chunked = score_tokens(model, batch, temperature=1.0, logits_per_chunk=1)
    assert chunked.entropy is None
    torch.testing.assert_close(whole.logprobs, chunked.logprobs, rtol=0, atol=1e-12)


def test_entropy_as_a_metric_has_no_gradient(make_model: Make, make_samples: Make) -> None:
    scores = score_tokens(make_model(), one_micro_batch(make_samples()), temperature=1.0, entropy="metric")
    assert scores.entropy is not None
    assert not scores.entropy.requires_grad
    assert scores.logprobs.requires_grad


def test_a_half_precision_model_is_scored_in_float32(make_model: Make, make_samples: Make) -> None:
    model = make_model(dtype=torch.bfloat16)
    check_model(model)
    scores = score_tokens(model, one_micro_batch(make_samples()), temperature=1.0)
    assert scores.logprobs.dtype == torch.float32


@pytest.mark.parametrize("pad_to", [0, 40])
def test_shared_rows_change_neither_value_nor_gradient(make_model: Make, pad_to: int) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 25, length).astype(np.int32) for length in (5, 1)]
    samples = [
        Sample.from_completion(prompts[i % 2], rng.integers(0, 25, length).astype(np.int32))
        for i, length in enumerate((3, 1, 9, 4, 1, 2, 6, 1))
    ]
    results = []
    for shared in (False, True):
        model = make_model()
        batch = one_micro_batch(samples, shared=shared, pad_to=pad_to)
        assert (batch.attention_mask is not None) is shared
        scores = score_tokens(model, batch, temperature=0.7, entropy="gradient")
        assert scores.entropy is not None
        (scores.logprobs.square().sum() + scores.entropy.sum()).backward()
        placed = dict(
            zip(
                batch.members.tolist(),
                torch.split(scores.logprobs.detach(), batch.segments.lengths.tolist()),
                strict=True,
            )
        )
        results.append([*(placed[i] for i in range(len(samples))), *(p.grad for p in model.parameters())])
    for alone, together in zip(*results, strict=True):
        # Norms are computed in float32 whatever the model's dtype.
        torch.testing.assert_close(alone, together, rtol=0, atol=1e-5 * float(alone.abs().max()))


@pytest.mark.parametrize(
    ("family", "runs"), [("llama", True), ("granite", True), ("cohere", True), ("gemma2", False)]
)
def test_models_that_look_through_a_window_run_no_shared_rows(family: str, runs: bool) -> None:
    assert runs_shared_rows(FAMILIES[family]().double().eval()) is runs


def test_models_with_another_attention_kernel_run_no_shared_rows(make_model: Make) -> None:
    model = make_model()
    assert runs_shared_rows(model)
    model.set_attn_implementation("eager")
    assert not runs_shared_rows(model)


@pytest.mark.parametrize(
    "objective", [SupervisedObjective(), PolicyObjective(make_algorithm("dapo", entropy_coef=0.01))]
)
def test_a_large_vocabulary_goes_through_tiles_with_the_same_gradient(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    samples = [
        Sample.from_completion(
            rng.integers(0, 9000, 2).astype(np.int32), rng.integers(0, 9000, 80).astype(np.int32)
        )
        for _ in range(8)
    ]
    columns = {"advantages": [rng.normal(size=82) for _ in samples]}
    results = []
    for tiles in (True, False):
        if not tiles:
            monkeypatch.setattr(forward, "_plain_head", lambda model: None)
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(**{**SHAPE, "vocab_size": 9000, "initializer_range": 0.2})
        ).double()
        made: list[Any] = []
        head = forward.linear_logprobs
        monkeypatch.setattr(
            forward, "linear_logprobs", lambda *a, head=head, made=made, **k: made.append(k) or head(*a, **k)
        )
        scorer = LocalScorer(model, temperature=0.8)
        accumulate_gradient(scorer, samples, objective, columns, totals=total_counts(samples))
        assert bool(made) is tiles
        if tiles:
            assert (made[0]["slopes"] is not None) is isinstance(objective, SupervisedObjective)
        results.append([p.grad for p in model.parameters()])
        monkeypatch.undo()
    for a, b in zip(*results, strict=True):
        # Norms are computed in float32 whatever the model's dtype.
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * float(b.abs().max()))


class AbsolutePositions(Qwen3ForCausalLM):
    """Takes the place in the row for the position."""

    def get_decoder(self) -> Any:
        decoder = self.model
        original = decoder.forward

        def forward(
            input_ids: Any, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
        ) -> Any:
            return original(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

        return type("Decoder", (), {"forward": staticmethod(forward), "__call__": staticmethod(forward)})()


def test_a_model_that_ignores_positions_is_found_out(make_model: Make) -> None:
    assert not runs_shared_rows(AbsolutePositions(make_model().config).double().eval())
