"""The local learner: one exact, split-independent, resumable optimizer step at a time."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    LearnerError,
    LocalLearner,
    LocalScorer,
    OptimizerSettings,
    PolicyObjective,
    Sample,
    SupervisedObjective,
    Totals,
    make_algorithm,
    policy_step,
    supervised_step,
)
from roll_learners.batch import total_counts
from roll_learners.gradient import accumulate_gradient
from transformers import Qwen3ForCausalLM

Make = Callable[..., Any]
AGGREGATIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_divisor"]


def weights(learner: LocalLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.export_weights()}


def advantages_of(samples: list[Sample]) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=len(sample.token_ids)) for sample in samples]


def gradients(
    model: Qwen3ForCausalLM, samples: list[Sample], algorithm: Any, budget: int, columns: Any
) -> Any:
    scorer = LocalScorer(model, micro_batch_tokens=budget, temperature=0.9)
    objective, totals = PolicyObjective(algorithm), total_counts(samples)
    accumulate_gradient(scorer, samples, objective, columns, totals=totals)
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("policy_loss", ["clipped_surrogate", "gspo", "cispo"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_is_the_same_for_every_split_order_and_masked_content(
    make_model: Make, make_samples: Make, policy_loss: str, aggregation: str
) -> None:
    samples = make_samples()
    algorithm = make_algorithm(
        "grpo",
        policy_loss=policy_loss,
        aggregation=aggregation,
        horizon=16 if aggregation == "constant_divisor" else None,
        kl={"placement": "loss", "estimator": "k3", "coef": 0.1},
        entropy_coef=0.01,
    )
    columns: dict[str, list[np.ndarray]] = {
        "advantages": advantages_of(samples),
        "old_logprobs": [np.random.default_rng(7).uniform(-4, -2, len(s.token_ids)) for s in samples],
        "ref_logprobs": [np.random.default_rng(9).uniform(-4, -2, len(s.token_ids)) for s in samples],
    }
    junk = {
        name: [np.where(s.response_mask, c, np.nan) for s, c in zip(samples, column, strict=True)]
        for name, column in columns.items()
    }
    backwards = {name: column[::-1] for name, column in columns.items()}
    expected = gradients(make_model(), samples, algorithm, 4096, columns)
    assert any(gradient.abs().max() > 1e-4 for gradient in expected)
    for variant in (
        gradients(make_model(), samples, algorithm, 17, columns),
        gradients(make_model(), samples[::-1], algorithm, 40, backwards),
        gradients(make_model(), samples, algorithm, 4096, junk),
    ):
        for ours, theirs in zip(variant, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


def test_samples_with_one_prompt_have_the_gradient_of_samples_apart(
    make_model: Make, make_samples: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = np.array([3, 1, 4, 1, 5], np.int32)
    samples = [
        Sample.from_completion(prompt, s.token_ids[s.response_mask], s.behavior_logprobs[s.response_mask])
        for s in make_samples()
    ]
    columns = {"advantages": advantages_of(samples)}
    together = [
        gradients(make_model(), samples, make_algorithm("gspo"), budget, columns) for budget in (4096, 20)
    ]
    monkeypatch.setattr("roll_learners.scoring.runs_shared_rows", lambda model: False)
    alone = gradients(make_model(), samples, make_algorithm("gspo"), 4096, columns)
    for ours, split, theirs in zip(*together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
        torch.testing.assert_close(split, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_an_update_is_one_adamw_step_on_the_clipped_gradient(make_model: Make, make_samples: Make) -> None:
    samples = make_samples()
    settings = OptimizerSettings(learning_rate=0.1, max_grad_norm=0.01, weight_decay=0.1, betas=(0.8, 0.9))
    learner = LocalLearner(make_model(), optimizer=settings)
    metrics = learner.update(samples, SupervisedObjective()).metrics
    twin = make_model()
    loss = -torch.cat(
        [
            twin(input_ids=torch.from_numpy(s.token_ids).long()[None])
            .logits[0, :-1]
            .log_softmax(-1)[torch.arange(len(s.token_ids) - 1), s.token_ids[1:]][s.response_mask[1:]]
            for s in samples
        ]
    ).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    decayed = [p for p in twin.parameters() if p.ndim == 2]
    plain = [p for p in twin.parameters() if p.ndim == 1]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1).step()
    assert metrics["nll"] == pytest.approx(loss.item())
    assert metrics["grad_norm"] == pytest.approx(norm.item())
    for ours, theirs in zip(learner.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_the_rate_follows_the_schedule(make_learner: Make, make_samples: Make) -> None:
    learner = make_learner(learning_rate=0.1, schedule="linear", warmup_steps=2, total_steps=4)
    rates = [learner.update(make_samples(), SupervisedObjective()).metrics["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05, 0.0])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_skips_the_step_and_names_the_samples(
    make_learner: Make, make_samples: Make, caplog: pytest.LogCaptureFixture, poison: float
) -> None:
    samples, learner = make_samples(), make_learner(micro_batch_tokens=17)
    learner.update(samples, SupervisedObjective())
    before, state = weights(learner), learner.state_dict()["optimizer"]["state"][0]["exp_avg"].clone()
    advantages = advantages_of(samples)
    advantages[3] = np.full_like(advantages[3], poison)
    with caplog.at_level(logging.WARNING):
        result = learner.update(
            samples,
            PolicyObjective(make_algorithm("dapo")),
            indices=[100 + i for i in range(len(samples))],
            advantages=advantages,
        )
    assert result.metrics == {"skipped_steps": 1.0, "tokens": total_counts(samples).tokens}
    assert result.skipped is not None
    assert (result.skipped.update, result.skipped.what, result.skipped.samples) == (1, "loss", (103,))
    assert not np.isfinite(result.skipped.loss)
    assert "loss is not finite in samples [103]" in caplog.text
    assert learner.updates == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.export_weights())
    assert torch.equal(learner.state_dict()["optimizer"]["state"][0]["exp_avg"], state)
    assert learner.update(samples, SupervisedObjective()).metrics["skipped_steps"] == 0


class SquareRootOfZero(SupervisedObjective):
    """A finite loss whose gradient is not."""

    def terms(self, tokens: Any) -> Any:
        terms = super().terms(tokens)
        return terms._replace(loss=(terms.loss - terms.loss.detach()).abs().sqrt())


def test_a_gradient_that_is_not_finite_skips_the_step(
    make_learner: Make, make_samples: Make, caplog: pytest.LogCaptureFixture
) -> None:
    learner = make_learner()
    before = weights(learner)
    skipped = learner.update(make_samples(), SquareRootOfZero()).skipped
    assert skipped is not None
    assert (skipped.what, skipped.loss, skipped.samples) == ("gradient", 0, tuple(range(8)))
    assert "gradient is not finite in samples [0, 1, 2, 3, 4, 5, 6, 7]" in caplog.text
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.export_weights())


class RootOfDistance(SupervisedObjective):
    """Its gradient is infinite at samples whose column `distance` is 0, and its loss is finite."""

    def terms(self, tokens: Any) -> Any:
        moved = tokens.logprobs - tokens.logprobs.detach()
        return super().terms(tokens)._replace(loss=(moved + tokens.columns["distance"]).abs().sqrt().sum())


@pytest.mark.parametrize("micro_batch_tokens", [17, 4096])
@pytest.mark.parametrize("columns_of", ["samples", "tokens"])
def test_the_samples_whose_gradient_is_not_finite_are_named_whatever_shares_their_pass(
    make_learner: Make, make_samples: Make, micro_batch_tokens: int, columns_of: str
) -> None:
    samples, learner = make_samples(), make_learner(micro_batch_tokens=micro_batch_tokens)
    before = weights(learner)
    distances = np.ones(len(samples))
    distances[[2, 5]] = 0
    column = (
        distances
        if columns_of == "samples"
        else [np.full(len(s.token_ids), d) for s, d in zip(samples, distances, strict=True)]
    )
    result = learner.update(samples, RootOfDistance(), indices=range(10, 18), distance=column)
    assert result.skipped is not None
    assert (result.skipped.what, result.skipped.samples) == ("gradient", (12, 15))
    assert np.isfinite(result.skipped.loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.export_weights())
    assert all(parameter.grad is None for parameter in learner.model.parameters())


def test_a_sample_that_is_not_finite_in_a_shared_row_is_told_from_the_others_of_its_group(
    make_learner: Make,
) -> None:
    prompt = np.array([3, 4, 5], np.int32)
    samples = [
        Sample.from_completion(prompt, np.array([7, 8, 9 + i], np.int32), reward=float(i % 2), group=0)
        for i in range(6)
    ]
    advantages = advantages_of(samples)
    advantages[4] = np.full_like(advantages[4], np.nan)
    learner = make_learner(dtype=torch.float32)
    result = learner.update(samples, PolicyObjective(make_algorithm("grpo")), advantages=advantages)
    assert result.skipped is not None
    assert result.skipped.samples == (4,)


def test_two_steps_saved_loaded_and_two_more_are_four_steps_to_the_last_bit(
    make_learner: Make, make_model: Make, make_samples: Make, tmp_path: Path
) -> None:
    settings = {"schedule": "cosine", "warmup_steps": 2, "total_steps": 12, "weight_decay": 0.1}
    batches = [make_samples(seed=seed) for seed in range(4)]
    algorithm = make_algorithm("grpo", entropy_coef=0.01)

    def run(learner: LocalLearner, steps: range) -> list[dict[str, float]]:
        return [
            policy_step(
                learner, batches[i], algorithm, mini_batches=2, epochs=1, rng=np.random.default_rng(i)
            ).metrics
            for i in steps
        ]

    whole = make_learner(model=make_model(dtype=torch.float32), **settings)
    expected = run(whole, range(4))
    first = make_learner(model=make_model(dtype=torch.float32), **settings)
    begun = run(first, range(2))
    first.save_pretrained(tmp_path / "model")
    torch.save(first.state_dict(), tmp_path / "learner.pt")
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    second = make_learner(model=loaded, **settings)
    second.load_state_dict(torch.load(tmp_path / "learner.pt"))
    assert begun + run(second, range(2, 4)) == expected
    for (name, ours), (other, theirs) in zip(second.export_weights(), whole.export_weights(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)


def test_a_resume_keeps_the_settings_of_the_new_run(make_learner: Make, make_samples: Make) -> None:
    first = make_learner(betas=(0.9, 0.99))
    first.update(make_samples(), SupervisedObjective())
    second = make_learner(betas=(0.5, 0.6))
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["optimizer"]["param_groups"][0]["betas"] == (0.5, 0.6)


def test_a_state_that_does_not_fit_is_refused(make_learner: Make) -> None:
    learner = make_learner()
    with pytest.raises(LearnerError, match="lacks optimizer, has updates"):
        learner.load_state_dict({"updates": 3})
    with pytest.raises(LearnerError, match="does not fit this model"):
        learner.load_state_dict({"updates": 3, "optimizer": {"state": {}, "param_groups": []}})


@pytest.mark.parametrize(("tied", "head"), [(True, False), (False, True)])
def test_exported_weights_have_each_tensor_once_under_its_hugging_face_name(
    make_learner: Make, make_model: Make, tmp_path: Path, tied: bool, head: bool
) -> None:
    learner = make_learner(model=make_model(tied=tied))
    exported = dict(learner.export_weights())
    assert ("lm_head.weight" in exported) is head
    assert not any(tensor.requires_grad for tensor in exported.values())
    learner.save_pretrained(tmp_path)
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).state_dict()
    assert exported.keys() | {"lm_head.weight"} == loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in exported.items())


def test_frozen_parameters_stay_and_a_model_of_them_alone_is_refused(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    model = make_model()
    model.model.embed_tokens.weight.requires_grad_(False)
    before = model.model.embed_tokens.weight.clone()
    make_learner(model=model).update(make_samples(), SupervisedObjective())
    assert torch.equal(model.model.embed_tokens.weight, before)
    with pytest.raises(LearnerError, match="no parameter that requires a gradient"):
        make_learner(model=model.requires_grad_(False))


def test_logprobs_are_at_trained_tokens_and_independent_of_the_split(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    samples = [*make_samples(), Sample.from_completion(np.array([3, 4], np.int32), np.zeros(0, np.int32))]
    wide = make_learner(temperature=0.7).logprobs(samples)
    narrow = make_learner(temperature=0.7, micro_batch_tokens=17).logprobs(samples)
    reference = LocalScorer(make_model(), temperature=0.7, micro_batch_tokens=30).logprobs(samples)
    assert wide[-1].tolist() == [0, 0]
    for sample, a, b, c in zip(samples, wide, narrow, reference, strict=True):
        assert a.shape == sample.token_ids.shape
        assert not a[~sample.response_mask].any()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        np.testing.assert_allclose(a, c, rtol=0, atol=1e-12)


def test_logprobs_of_a_float32_model_are_float32(make_learner: Make, make_samples: Make) -> None:
    assert {c.dtype for c in make_learner(dtype=torch.float32).logprobs(make_samples())} == {
        np.dtype("float32")
    }


def test_dropout_is_off_in_updates(make_model: Make, make_learner: Make, make_samples: Make) -> None:
    model = make_model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    learner, plain = make_learner(model=model.train()), make_learner()
    for each in (learner, plain):
        each.update(make_samples(), SupervisedObjective())
    assert all(torch.equal(a, dict(plain.export_weights())[n]) for n, a in learner.export_weights())


def test_an_update_of_samples_that_add_nothing_equals_computing_them(
    make_learner: Make, make_samples: Make
) -> None:
    samples = make_samples()
    objective = PolicyObjective(make_algorithm("dapo"))
    zeros = [np.zeros(len(sample.token_ids)) for sample in samples]
    computed, left_out = make_learner(), make_learner()
    for learner in (computed, left_out):
        learner.update(samples, SupervisedObjective())
    computed.update(samples, objective, advantages=zeros)
    result = left_out.update([], objective, totals=Totals(tokens=9, sequences=8), advantages=[])
    assert result.metrics["grad_norm"] == 0
    for (_, a), (_, b) in zip(computed.export_weights(), left_out.export_weights(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_not_above_zero_is_refused(make_learner: Make, temperature: float) -> None:
    with pytest.raises(LearnerError, match="allowed is above 0"):
        make_learner(temperature=temperature)


def test_supervised_steps_learn_the_demonstrations(make_learner: Make, make_samples: Make) -> None:
    learner, samples = make_learner(learning_rate=3e-2), make_samples()
    losses = [supervised_step(learner, samples).metrics["actor/nll"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
