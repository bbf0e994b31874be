"""An adapter is trained beside frozen weights, resumed exactly, switched off, exported and merged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from roll_learners import (
    LearnerError,
    LocalLearner,
    LocalScorer,
    LoraSettings,
    OptimizerSettings,
    SupervisedObjective,
    make_algorithm,
    policy_step,
)
from roll_learners.lora import add_adapter, load_adapter
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

Make = Callable[..., Any]
SETTINGS = LoraSettings(rank=2, alpha=8, target_modules=("q_proj", "v_proj", "down_proj"))


@pytest.fixture
def make_lora(make_model: Make) -> Make:
    def make(lora: LoraSettings | None = SETTINGS, **options: Any) -> LocalLearner:
        model = options.pop("model", None) or make_model(**options.pop("kind", {"dtype": torch.float32}))
        optimizer = OptimizerSettings(learning_rate=1e-2)
        return LocalLearner(model, optimizer=optimizer, micro_batch_tokens=64, lora=lora, **options)

    return make


def trained(learner: LocalLearner, samples: Any, updates: int = 3) -> LocalLearner:
    for _ in range(updates):
        learner.update(samples, SupervisedObjective())
    return learner


def test_the_adapter_learns_and_the_model_stays(
    make_lora: Make, make_model: Make, make_samples: Make
) -> None:
    samples, learner = make_samples(), make_lora()
    plain = dict(make_model(dtype=torch.float32).state_dict())
    losses = [learner.update(samples, SupervisedObjective()).metrics["loss"] for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]
    for name, tensor in learner.model.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(tensor, plain[name.replace(".base_layer.", ".")])


def test_a_new_adapter_changes_nothing_and_is_the_same_for_a_seed(
    make_lora: Make, make_model: Make, make_samples: Make
) -> None:
    samples = make_samples()
    model = make_model(dtype=torch.float32)
    state = torch.random.get_rng_state()
    first = make_lora(model=model)
    assert torch.equal(torch.random.get_rng_state(), state)
    plain = LocalScorer(make_model(dtype=torch.float32)).logprobs(samples)
    for a, b in zip(first.logprobs(samples), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    own, same = dict(first.export_adapter()[1]), dict(make_lora().export_adapter()[1])
    assert own.keys() == same.keys()
    assert all(torch.equal(tensor, same[name]) for name, tensor in own.items())
    settings = LoraSettings(rank=2, alpha=8, target_modules=SETTINGS.target_modules, seed=1)
    other = dict(make_lora(settings).export_adapter()[1])
    assert not any(torch.equal(tensor, other[name]) for name, tensor in own.items() if "lora_A" in name)


def test_without_the_adapter_the_learner_is_its_reference(
    make_lora: Make, make_model: Make, make_samples: Make
) -> None:
    samples = make_samples()
    learner = trained(make_lora(), samples)
    reference = learner.reference()
    before = learner.logprobs(samples)
    for got, plain, own in zip(
        reference.logprobs(samples),
        LocalScorer(make_model(dtype=torch.float32), micro_batch_tokens=64).logprobs(samples),
        before,
        strict=True,
    ):
        np.testing.assert_allclose(got, plain, rtol=0, atol=1e-6)
        assert np.abs(got - own).max() > 1e-3
    for again, own in zip(learner.logprobs(samples), before, strict=True):
        assert np.array_equal(again, own)


def test_a_policy_step_with_a_kl_term_uses_the_adapter_off(
    make_lora: Make, make_model: Make, make_samples: Make
) -> None:
    """The same step with a second model as its reference has the same metrics and weights."""
    algorithm = make_algorithm("grpo", kl={"placement": "loss", "estimator": "full", "coef": 0.1})
    outcomes = []
    for own in (True, False):
        learner = trained(make_lora(), make_samples(seed=4))
        reference = learner.reference() if own else LocalScorer(make_model(dtype=torch.float32))
        rng = np.random.default_rng(0)
        step = policy_step(
            learner, make_samples(), algorithm, mini_batches=2, epochs=1, rng=rng, reference=reference
        )
        assert step.metrics["actor/ref_kl"] > 0
        outcomes.append((step.metrics, dict(learner.export_adapter()[1])))
    (metrics, weights), (others, other_weights) = outcomes
    assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6)
    assert all(torch.allclose(tensor, other_weights[name], atol=1e-5) for name, tensor in weights.items())


def test_merged_weights_are_the_policy_and_asking_twice_changes_nothing(
    make_lora: Make, make_model: Make, make_samples: Make, tmp_path: Path
) -> None:
    samples = make_samples()
    learner = trained(make_lora(), samples)
    expected = learner.logprobs(samples)
    merged = {name: tensor.clone() for name, tensor in learner.export_weights()}
    assert all(torch.equal(tensor, merged[name]) for name, tensor in learner.export_weights())
    plain = make_model(dtype=torch.float32)
    assert merged.keys() | {"lm_head.weight"} == plain.state_dict().keys()
    plain.load_state_dict(merged, strict=False)
    learner.save_pretrained(tmp_path)
    saved = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for model in (plain, saved):
        for a, b in zip(LocalScorer(model).logprobs(samples), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_the_saved_adapter_is_in_the_layout_of_peft(
    make_lora: Make, make_model: Make, make_samples: Make, tmp_path: Path
) -> None:
    samples = make_samples()
    learner = trained(make_lora(), samples)
    learner.save_adapter(tmp_path)
    config, exported = learner.export_adapter()
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert {name: tensor.tolist() for name, tensor in exported} == {
        name: tensor.tolist() for name, tensor in stored.items()
    }
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (written["r"], written["lora_alpha"]) == (2, 8)
    assert json.dumps(config)
    loaded = PeftModel.from_pretrained(make_model(dtype=torch.float32), str(tmp_path))
    for a, b in zip(
        LocalScorer(loaded.get_base_model()).logprobs(samples), learner.logprobs(samples), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_two_updates_saved_loaded_and_two_more_are_four_to_the_last_bit(
    make_lora: Make, make_samples: Make, tmp_path: Path
) -> None:
    samples = make_samples()
    whole = trained(make_lora(), samples, 4)
    first = trained(make_lora(), samples, 2)
    first.save_adapter(tmp_path)
    torch.save(first.state_dict(), tmp_path / "learner.pt")
    second = make_lora(None, adapter=tmp_path)
    second.load_state_dict(torch.load(tmp_path / "learner.pt"))
    trained(second, samples, 2)
    for (name, a), (other, b) in zip(whole.export_adapter()[1], second.export_adapter()[1], strict=True):
        assert name == other
        assert torch.equal(a, b)


def test_one_side_of_a_tied_pair_is_merged_into_an_untied_model_and_not_synchronised(
    make_lora: Make, make_samples: Make, tmp_path: Path
) -> None:
    samples = make_samples()
    learner = trained(make_lora(LoraSettings(rank=2, target_modules=("lm_head",))), samples)
    with pytest.raises(LearnerError, match="changes lm_head, tied to the embedding"):
        learner.export_weights()
    learner.save_pretrained(tmp_path)
    saved = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert saved.config.tie_word_embeddings is False
    assert torch.equal(saved.model.embed_tokens.weight, learner.model.model.embed_tokens.weight)
    assert not torch.equal(saved.lm_head.weight, saved.model.embed_tokens.weight)
    for a, b in zip(LocalScorer(saved).logprobs(samples), learner.logprobs(samples), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_a_half_precision_model_has_an_adapter_in_float32(make_lora: Make, make_samples: Make) -> None:
    learner = trained(make_lora(kind={"dtype": torch.bfloat16}), make_samples())
    assert {tensor.dtype for _, tensor in learner.export_adapter()[1]} == {torch.float32}
    assert {tensor.dtype for _, tensor in learner.export_weights()} == {torch.bfloat16}


def test_what_cannot_be_is_named(make_lora: Make, make_model: Make, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"Qwen3ForCausalLM takes no adapter.*q_prj"):
        add_adapter(make_model(), LoraSettings(target_modules=("q_prj",)))
    with pytest.raises(LearnerError, match=r"holds no adapter_config\.json"):
        load_adapter(make_model(), tmp_path)
    with pytest.raises(LearnerError, match="both given"):
        make_lora(adapter=tmp_path)
    with pytest.raises(LearnerError, match="made without lora or adapter"):
        make_lora(None).reference()
    with pytest.raises(LearnerError, match=r"lora\.rank is 0"):
        LoraSettings(rank=0)
    with pytest.raises(LearnerError, match=r"lora\.alpha is 0"):
        LoraSettings(alpha=0)
    with pytest.raises(LearnerError, match=r"lora\.target_modules is \['all-linear', 'q_proj'\]"):
        LoraSettings(target_modules=("all-linear", "q_proj"))


def test_an_adapter_of_another_model_is_refused(make_lora: Make, make_model: Make, tmp_path: Path) -> None:
    make_lora().save_adapter(tmp_path)
    config = make_model().config
    config.hidden_size = 24
    with pytest.raises(LearnerError, match="cannot load the adapter"):
        load_adapter(Qwen3ForCausalLM(config), tmp_path)
