"""Preferences, packing and distillation agree with an independent generator and with TRL's own code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roll_learners as rl
import torch
from roll_learners import DIVERGENCES, PREFERENCE_LOSSES, Sample

DATA = Path(__file__).parents[1] / "data"


def cases(name: str) -> list[Any]:
    found: list[Any] = json.loads((DATA / "vectors" / f"{name}.json").read_text())["cases"]
    return found


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.detach(), tensor(expected), rtol=0, atol=1e-6)


def test_the_dpo_family() -> None:
    (case,) = cases("dpo")
    inputs, expected = case["inputs"], case["expected"]
    keys = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
    sums = [tensor(inputs[key]) for key in keys]
    logits = rl.preference_logits(*sums)
    beta, smoothing = case["params"]["beta"], case["params"]["label_smoothing"]
    close(logits, expected["logits"])
    lengths = [tensor(inputs[key]) for key in ("len_chosen", "len_rejected")] * 2
    averaged = rl.preference_logits(*(s / n for s, n in zip(sums, lengths, strict=True)))
    losses = {
        "sigmoid": rl.dpo(logits, beta=beta),
        "cdpo": rl.dpo(logits, beta=beta, label_smoothing=smoothing),
        "robust": rl.robust_dpo(logits, beta=beta, label_smoothing=smoothing),
        "hinge": rl.hinge(logits, beta=beta),
        "ipo_sum (ROLL)": rl.ipo(logits, beta=beta),
        "ipo_length_avg (TRL)": rl.ipo(averaged, beta=beta),
    }
    for name, value in losses.items():
        close(value, expected[name])
        close(value.mean(), expected["mean"][name])


def test_kto() -> None:
    (case,) = cases("kto")
    inputs, expected = case["inputs"], case["expected"]
    baseline = rl.kto_baseline(tensor(inputs["kl_policy"]), tensor(inputs["kl_ref"]))
    close(baseline, expected["z0"])
    losses = rl.kto(
        tensor(inputs["policy"]),
        tensor(inputs["ref"]),
        torch.tensor(inputs["desirable"]).bool(),
        baseline,
        **case["params"],
    )
    close(losses, expected["per_example"])
    close(losses.mean(), expected["loss"])


def averages(inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(  # type: ignore[return-value]  # two of them
        tensor(inputs[f"sum_logp_{side}"]) / tensor(inputs[f"len_{side}"]) for side in ("chosen", "rejected")
    )


def test_orpo_and_simpo() -> None:
    (orpo,), (simpo,) = cases("orpo"), cases("simpo")
    chosen, rejected = averages(orpo["inputs"])
    losses = rl.orpo(chosen, rejected, coef=orpo["params"]["lambda"])
    close(losses, orpo["expected"]["total_per_pair"])
    close(-chosen, orpo["expected"]["nll_per_pair"])
    close(losses.mean(), orpo["expected"]["loss"])
    chosen, rejected = averages(simpo["inputs"])
    losses = rl.simpo(chosen - rejected, **simpo["params"])
    close(losses, simpo["expected"]["per_pair"])


TRL_DPO = json.loads((DATA / "vectors_trl" / "dpo.json").read_text())
TRL_NAMES = {
    "sigmoid": rl.PREFERENCES["dpo"],
    "sigmoid_beta0.5": rl.Preference(options={"beta": 0.5}),
    "hinge": rl.PREFERENCES["hinge"],
    "ipo": rl.PREFERENCES["ipo"],
    "robust_ls0.1": rl.PREFERENCES["robust_dpo"],
    "sigmoid_norm": rl.Preference(average=True, options={"beta": 0.1}),
}


@pytest.mark.parametrize("name", TRL_NAMES)
def test_preference_losses_and_gradients_are_those_of_trl(name: str) -> None:
    inputs, case, preference = TRL_DPO["inputs"], TRL_DPO["cases"][name], TRL_NAMES[name]
    mask = torch.tensor(inputs["completion_mask_unshifted"])[:, 1:].bool()
    logps = tensor(inputs["per_token_logps_chosen_then_rejected"]).requires_grad_()
    segments, flat, ref = rl.response_tokens(mask, logps, tensor(inputs["ref_per_token_logps"]))
    gather = segments.means if preference.average else segments.sums
    policy, reference = gather(flat).chunk(2), gather(ref).chunk(2)
    losses = PREFERENCE_LOSSES.bind(preference.loss, preference.options)(
        logits=rl.preference_logits(*policy, *reference), chosen=policy[0], rejected=policy[1]
    )
    losses.mean().backward()
    torch.testing.assert_close(losses.mean(), tensor(case["loss"]), rtol=0, atol=1e-8)
    assert logps.grad is not None
    wanted = tensor(case["grad_logps"])  # on padding TRL's are not 0: its leaf was masked before
    torch.testing.assert_close(logps.grad[mask], wanted[mask], rtol=0, atol=1e-8)


DISTILLATION = {case["name"]: case for case in cases("distillation")}
DIVERGENCE_NAMES = {
    "forward_kl": ("forward_kl", {}),
    "reverse_kl": ("reverse_kl", {}),
    "jsd": ("generalised_js", {}),
    "gkd_jsd_beta_0.1": ("generalised_js", {"beta": 0.1}),
    "gkd_jsd_beta_0.5": ("generalised_js", {"beta": 0.5}),
    "gkd_jsd_beta_0.9": ("generalised_js", {"beta": 0.9}),
    "skewed_forward_kl_0.1": ("skewed_forward_kl", {"skew": 0.1}),
    "skewed_reverse_kl_0.1": ("skewed_reverse_kl", {"skew": 0.1}),
    "adaptive_kl_0.5": ("adaptive_kl", {"head_mass": 0.5}),
}


@pytest.mark.parametrize("name", DIVERGENCE_NAMES)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergences(temperature: float, name: str) -> None:
    case = DISTILLATION[f"temperature {temperature}"]
    divergence, options = DIVERGENCE_NAMES[name]
    student, teacher = (
        torch.log_softmax(tensor(case["inputs"][f"{side}_logits"]) / temperature, -1)
        for side in ("student", "teacher")
    )
    values = DIVERGENCES.bind(divergence, options)(student=student, teacher=teacher)
    close(values, [case["expected"][f"token{i}"][name] for i in range(2)])


@pytest.mark.parametrize(
    ("top_mass", "divergence", "key"),
    [
        ("renormalised", "forward_kl", "forward_kl_renorm_both (ROLL)"),
        ("renormalised", "reverse_kl", "reverse_kl_renorm_both"),
        ("student_full", "forward_kl", "forward_kl_student_full_softmax"),
    ],
)
def test_the_teachers_most_probable_tokens_alone(top_mass: Any, divergence: str, key: str) -> None:
    case = DISTILLATION["top-3 teacher logits transferred"]
    student, teacher = (tensor(case["inputs"][f"{side}_logits"]) for side in ("student", "teacher"))
    top = teacher.topk(case["params"]["top_k"])
    rule = rl.Distillation(divergence=divergence, top_k=3, top_mass=top_mass)
    term = rl.DistillationObjective(rule, [lambda states: states]).logits_term
    assert term is not None
    columns = {
        "teacher_ids_0": top.indices.double(),
        "teacher_logits_0": top.values,
        "teacher_weight_0": torch.ones(2, dtype=torch.float64),
    }
    close(term(student, columns), [case["expected"][f"token{i}"][key] for i in range(2)])


def test_likelihood_and_divergence_are_mixed() -> None:
    case = DISTILLATION["total = (1-w)*CE + w*KD"]
    rule = rl.Distillation(weight=case["params"]["distill_loss_weight"])
    tokens = rl.TokenBatch(
        logprobs=-tensor(case["inputs"]["ce_per_token"]),
        entropy=None,
        segments=rl.Segments.of_lengths(torch.tensor([2])),
        totals=rl.Totals(tokens=2, sequences=1),
        columns={},
        from_logits=tensor(case["inputs"]["kd_per_token"]),
    )
    close(rl.DistillationObjective(rule, []).terms(tokens).loss, case["expected"]["loss"])


GKD = json.loads((DATA / "vectors_trl" / "gkd.json").read_text())


@pytest.mark.parametrize("name", GKD["cases"])
def test_generalised_js_and_its_gradient_are_those_of_trl(name: str) -> None:
    case, inputs = GKD["cases"][name], GKD["inputs"]
    temperature, beta = case["config"]["temperature"], case["config"]["beta"]
    mask = torch.tensor(inputs["labels"]) != -100
    student, teacher = tensor(inputs["student_logits"]).requires_grad_(), tensor(inputs["teacher_logits"])
    values = rl.generalised_js(
        torch.log_softmax(student[mask] / temperature, -1),
        torch.log_softmax(teacher[mask] / temperature, -1),
        beta=beta,
    )
    values.mean().backward()
    torch.testing.assert_close(values.mean(), tensor(case["loss"]), rtol=0, atol=1e-8)
    torch.testing.assert_close(student.grad, tensor(case["grad_student_logits"]), rtol=0, atol=1e-8)


def test_packing() -> None:
    (case,) = cases("sft_packing")
    expected = case["expected"]
    samples = [
        Sample.from_completion(np.array(s["prompt"], np.int32), np.array(s["response"], np.int32))
        for s in case["inputs"]["samples"]
    ]
    packed = rl.pack(samples)
    assert packed.input_ids.tolist() == expected["input_ids"]
    assert packed.position_ids.tolist() == expected["position_ids"]
    assert packed.boundaries.tolist() == expected["cu_seqlens"]
    assert packed.targets.tolist() == expected["shifted_targets"]
    assert packed.attention_mask().astype(int).tolist() == expected["attention_allowed"]
    trained = packed.targets != -100
    logprobs = tensor(case["inputs"]["logp_of_target"])[torch.from_numpy(trained)]
    segments = rl.Segments.of_lengths(torch.tensor([s.response_tokens for s in samples]))
    totals = rl.Totals.of_lengths(segments.lengths)
    assert totals.tokens == expected["n_loss_tokens"]
    tokens = rl.TokenBatch(logprobs=logprobs, entropy=None, segments=segments, totals=totals, columns={})
    close(rl.SupervisedObjective().terms(tokens).loss, expected["token_mean_nll"])
    by_sample = rl.SupervisedObjective("seq_mean_token_mean").terms(tokens).loss
    close(by_sample, expected["sample_mean_nll"])
