"""A mixture of experts is trained with the experts that the engine recorded."""

import dataclasses
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
    Routers,
    Sample,
    SupervisedObjective,
    replayed_gates,
)
from roll_learners.batch import total_counts
from roll_learners.gradient import accumulate_gradient
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

Make = Callable[..., Any]
SHAPE: dict[str, Any] = {
    "vocab_size": 25,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


def in_float64(model: Any) -> Any:
    """The grouped product of experts has no float64 form."""
    model.set_experts_implementation("eager")
    return model.double().eval()


def qwen(*, normalised: bool = True, dense: tuple[int, ...] = (1,)) -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **SHAPE,
        head_dim=8,
        intermediate_size=24,
        moe_intermediate_size=8,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=normalised,
        mlp_only_layers=list(dense),
    )
    return in_float64(Qwen3MoeForCausalLM(config))


def mixtral() -> Any:
    torch.manual_seed(0)
    config = MixtralConfig(**SHAPE, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2)
    return in_float64(MixtralForCausalLM(config))


def routed_by(model: Any, sample: Sample) -> dict[int, torch.Tensor]:
    """The experts of each sparse layer, by the model's weights."""
    found: dict[int, torch.Tensor] = {}
    hooks = [
        layer.mlp.gate.register_forward_hook(
            lambda module, given, output, number=number: found.update({number: output[2]})
        )
        for number, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts")
    ]
    with torch.no_grad():
        model(input_ids=torch.from_numpy(sample.token_ids.astype(np.int64))[None])
    for hook in hooks:
        hook.remove()
    return found


def drawn(sample: Sample, layers: int, seed: int = 3) -> np.ndarray:
    """Two different experts of six for each token and layer."""
    rng = np.random.default_rng(seed)
    rows = [[rng.permutation(6)[:2] for _ in range(layers)] for _ in sample.token_ids]
    return np.array(rows, np.int16)


@pytest.mark.parametrize("build", [qwen, lambda: qwen(normalised=False), mixtral])
def test_replaying_what_the_weights_choose_changes_nothing(build: Any, make_samples: Make) -> None:
    model, samples = build(), make_samples()
    recorded = []
    for sample in samples:
        experts = np.full((len(sample.token_ids), 3, 2), 0, np.int16)
        for number, chosen in routed_by(model, sample).items():
            experts[:, number] = chosen.numpy()
        recorded.append(dataclasses.replace(sample, routed_experts=experts))
    scorer = LocalScorer(model, micro_batch_tokens=40)
    plain = scorer.logprobs(samples)
    for a, b in zip(plain, scorer.logprobs(recorded), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_replayed_experts_and_their_weights_are_used(make_samples: Make) -> None:
    """A pass through the layers by hand, with the gates of R3, has the same states."""
    model = qwen(dense=())
    sample = make_samples()[0]
    experts = drawn(sample, 3)
    scorer = LocalScorer(model)
    got = scorer.logprobs([dataclasses.replace(sample, routed_experts=experts)])[0]

    def by_hand(module: Any, given: Any, output: Any, number: int = 0) -> Any:
        logits, _, _ = output
        own = torch.from_numpy(experts[: len(logits), number].astype(np.int64))
        gates = replayed_gates(logits, own)
        return logits, gates.gather(1, own), own

    plain = qwen(dense=())
    for number, layer in enumerate(plain.model.layers):
        layer.mlp.gate.register_forward_hook(
            lambda module, given, output, number=number: by_hand(module, given, output, number)
        )
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None, :-1]
    with torch.no_grad():
        logprobs = plain(input_ids=ids).logits[0].log_softmax(-1)
    trained = np.flatnonzero(sample.response_mask)
    expected = logprobs[trained - 1, sample.token_ids[trained].astype(np.int64)].numpy()
    np.testing.assert_allclose(got[trained], expected, rtol=0, atol=1e-6)
    assert np.abs(got[trained] - scorer.logprobs([sample])[0][trained]).max() > 1e-3


def gradient(samples: list[Sample], budget: int, **settings: Any) -> list[torch.Tensor]:
    model = qwen()
    compute = ComputeSettings(**settings.pop("compute", {}))
    scorer = LocalScorer(model, micro_batch_tokens=budget, compute=compute, **settings)
    accumulate_gradient(scorer, samples, SupervisedObjective(), {}, totals=total_counts(samples))
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.parametrize("compute", [{}, {"packing": True}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("aux", [0.0, 0.5])
def test_the_gradient_of_replayed_samples_is_independent_of_the_split(
    make_samples: Make, compute: dict[str, bool], aux: float
) -> None:
    samples = [
        dataclasses.replace(sample, routed_experts=drawn(sample, 3, seed=i)) if i % 3 else sample
        for i, sample in enumerate(make_samples())
    ]
    expected = gradient(samples, 4096, router_aux_loss=aux)
    got = gradient(samples[::-1], 20, router_aux_loss=aux, compute=compute)
    scale = max(float(each.abs().max()) for each in expected)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * scale)


def test_tokens_without_a_record_are_routed_by_the_weights(make_samples: Make) -> None:
    sample = make_samples()[0]
    scorer = LocalScorer(qwen())
    whole = drawn(sample, 3)
    unknown = np.full_like(whole, -1)
    plain = scorer.logprobs([sample])[0]
    for experts in (unknown, unknown[:0]):
        recorded = dataclasses.replace(sample, routed_experts=experts)
        np.testing.assert_allclose(scorer.logprobs([recorded])[0], plain, rtol=0, atol=1e-6)
    # Sparse layers alone: those of layers 0 and 2 of three.
    every = scorer.logprobs([dataclasses.replace(sample, routed_experts=whole)])[0]
    sparse = scorer.logprobs([dataclasses.replace(sample, routed_experts=whole[:, [0, 2]])])[0]
    np.testing.assert_allclose(every, sparse, rtol=0, atol=1e-12)


def test_the_aux_loss_spreads_tokens_and_is_off_by_default(make_samples: Make) -> None:
    samples = make_samples()
    imbalances = []
    for weight in (0.0, 2.0):
        optimizer = OptimizerSettings(learning_rate=2e-2)
        learner = LocalLearner(qwen(), optimizer=optimizer, router_aux_loss=weight)
        results = [learner.update(samples, SupervisedObjective()).metrics for _ in range(15)]
        if not weight:
            assert "router_imbalance" not in results[0]
            continue
        imbalances = [result["router_imbalance"] for result in results]
    assert imbalances[-1] < imbalances[0]
    assert imbalances[-1] >= 1 - 1e-6


def test_an_even_router_has_an_imbalance_of_one(make_samples: Make) -> None:
    model = qwen(dense=())
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()
    routers = Routers(model)
    routers.record()
    model(input_ids=torch.arange(6)[None])
    imbalance = routers.imbalance(torch.tensor([0, 0, 0, 1, 1, -1]), 2)
    torch.testing.assert_close(imbalance.float(), torch.ones(2))


def test_what_does_not_fit_is_named(make_model: Make, make_samples: Make) -> None:
    sample = make_samples()[0]
    scorer = LocalScorer(qwen())
    wide = dataclasses.replace(sample, routed_experts=drawn(sample, 5))
    with pytest.raises(
        LearnerError, match="has 5 layers and 2 experts a token; the model has 3 layers, of which 2"
    ):
        scorer.logprobs([wide])
    strange = dataclasses.replace(sample, routed_experts=drawn(sample, 3) + np.int16(9))
    with pytest.raises(LearnerError, match=r"names expert 14; the model has 0 to 5"):
        scorer.logprobs([strange])
    with pytest.raises(LearnerError, match="Qwen3ForCausalLM has no router"):
        LocalScorer(make_model()).logprobs([dataclasses.replace(sample, routed_experts=drawn(sample, 3))])
    with pytest.raises(LearnerError, match=r"Sample\.routed_experts is int64"):
        dataclasses.replace(sample, routed_experts=drawn(sample, 3).astype(np.int64))
