"""The gradient is the same for every split, rank count, order, masked content and form of rows."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    ComputeSettings,
    LearnerError,
    LocalLearner,
    LocalScorer,
    OptimizerSettings,
    Sample,
    check_gradient,
    check_learner,
    make_algorithm,
    response_tokens,
)
from roll_learners.batch import micro_batches
from roll_learners.forward import use_packed_rows
from roll_learners.invariance import RunnerCase
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

Make = Callable[..., Any]
PACKED = ComputeSettings(packing=True)
SHAPE: dict[str, Any] = {
    "vocab_size": 25,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}


def cases(make_model: Make, *, packing: bool = False, sharing: bool = True) -> Callable[[int], RunnerCase]:
    def make(budget: int) -> RunnerCase:
        model = make_model()
        scorer = LocalScorer(model, micro_batch_tokens=budget, compute=ComputeSettings(packing=packing))
        if not sharing:
            scorer._sharing = None
        return RunnerCase(scorer, list(model.parameters()))

    return make


@pytest.mark.parametrize("algorithm", [None, "gspo", "dr_grpo"])
def test_the_gradient_of_the_local_learner_depends_on_the_samples_alone(
    make_model: Make, algorithm: str | None
) -> None:
    chosen = (
        None
        if algorithm is None
        else make_algorithm(algorithm, **({"horizon": 16} if algorithm == "dr_grpo" else {}))
    )
    results = check_gradient(
        cases(make_model, sharing=False),
        vocab_size=25,
        forms={
            "shared prompts": cases(make_model),
            "packing": cases(make_model, packing=True, sharing=False),
            "packed shared prompts": cases(make_model, packing=True),
        },
        algorithm=chosen,
        # Norms are computed in float32 whatever the model's dtype.
        tolerance=1e-5,
    )
    assert len(results) == 11
    assert [result for result in results if not result.passed] == []


class MeanOfMeans(LocalScorer):
    """Divides by the tokens of its own micro-batch, as gradient accumulation often does by mistake."""

    def terms(self, batch: Any, objective: Any, columns: Any, totals: Any) -> Any:
        own = totals._replace(tokens=len(batch.targets))
        return super().terms(batch, objective, columns, own)


def test_a_runner_whose_gradient_depends_on_the_split_is_found(make_model: Make) -> None:
    def make(budget: int) -> RunnerCase:
        model = make_model()
        return RunnerCase(MeanOfMeans(model, micro_batch_tokens=budget), list(model.parameters()))

    failed = {r.name for r in check_gradient(make, vocab_size=25, tolerance=1e-5) if not r.passed}
    assert "gradient is independent of micro-batch split" in failed
    assert "gradient is independent of masked content" not in failed


def test_a_learner_with_packed_rows_conforms(make_model: Make) -> None:
    def make(tokens: int) -> LocalLearner:
        optimizer = OptimizerSettings(learning_rate=1e-2)
        return LocalLearner(make_model(), optimizer=optimizer, micro_batch_tokens=tokens, compute=PACKED)

    assert [r for r in check_learner(make, vocab_size=25, tolerance=1e-6) if not r.passed] == []


def test_packed_log_probs_are_those_of_single_passes(make_model: Make, make_samples: Make) -> None:
    samples = make_samples()
    padded = LocalScorer(make_model(), micro_batch_tokens=17).logprobs(samples)
    packed = LocalScorer(make_model(), micro_batch_tokens=40, compute=PACKED).logprobs(samples)
    for a, b in zip(padded, packed, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_packed_micro_batches_hold_no_pad(make_samples: Make) -> None:
    samples = make_samples()
    batches = list(micro_batches(samples, budget=40, sharing=None, device="cpu", packing=True))
    assert sorted(np.concatenate([batch.members for batch in batches]).tolist()) == list(range(len(samples)))
    fed = sum(int(np.flatnonzero(sample.response_mask)[-1]) for sample in samples)
    assert sum(batch.input_ids.numel() for batch in batches) == fed
    assert all(batch.input_ids.shape[1] <= 40 for batch in batches)


def test_a_not_finite_neighbour_in_a_packed_row_stays_with_itself(make_model: Make) -> None:
    """The embedding of token 7 is NaN: its own sample is lost, the other's log-probs are not."""
    model = make_model(tied=False)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = torch.nan
    clean = Sample.from_completion(np.array([1, 2], np.int32), np.array([3, 4, 5, 6], np.int32))
    lost = Sample.from_completion(np.array([7, 2], np.int32), np.array([3, 4], np.int32))
    scorer = LocalScorer(model, compute=PACKED)
    (batch,) = scorer.batches([lost, clean])
    logprobs = scorer.score(batch).logprobs
    own = batch.segments.ids == batch.members.tolist().index(1)
    assert torch.isfinite(logprobs[own]).all()
    assert not torch.isfinite(logprobs[~own]).any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_tensors_of_either_side_give_the_same_flat_tokens(side: str) -> None:
    rng = np.random.default_rng(0)
    rows = [torch.from_numpy(rng.normal(size=length)) for length in (3, 5, 1)]
    padded = torch.full((3, 6), torch.nan, dtype=torch.float64)
    mask = torch.zeros(3, 6)
    for i, row in enumerate(rows):
        place = slice(6 - len(row), 6) if side == "left" else slice(0, len(row))
        padded[i, place], mask[i, place] = row, 1
    padded.requires_grad_(True)
    segments, flat = response_tokens(mask, padded)
    assert torch.equal(flat, torch.cat(rows))
    assert segments.lengths.tolist() == [3, 5, 1]
    flat.exp().sum().backward()
    assert torch.isfinite(padded.grad).all()


def gated_delta() -> Any:
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **SHAPE,
            head_dim=8,
            linear_num_key_heads=1,
            linear_num_value_heads=1,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=8,
            shared_expert_intermediate_size=8,
            layer_types=["linear_attention", "full_attention"],
        )
    )


def mamba() -> Any:
    return MambaForCausalLM(
        MambaConfig(vocab_size=25, hidden_size=16, state_size=4, num_hidden_layers=1, pad_token_id=0)
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (gated_delta, "layers of type linear_attention, which would carry state"),
        (mamba, "MambaForCausalLM has layers of type linear_attention"),
        (lambda: Gemma2ForCausalLM(Gemma2Config(head_dim=8, **SHAPE)), "sliding_attention"),
    ],
)
def test_families_that_carry_state_over_a_boundary_refuse_packing(build: Any, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are not installed
        model = build().eval()
        before = model.config._attn_implementation
        with pytest.raises(LearnerError, match=message):
            use_packed_rows(model)
    assert model.config._attn_implementation == before


def test_a_family_without_state_is_packed() -> None:
    use_packed_rows(LlamaForCausalLM(LlamaConfig(**SHAPE)).eval())
