"""Policy losses, corrections and critics agree with an independent float64 generator, to 1e-6."""

import json
from pathlib import Path
from typing import Any

import pytest
import roll_learners as rl
import torch
from roll_learners import Segments, Totals, Turns, response_tokens

VECTORS = Path(__file__).parents[1] / "data" / "vectors"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.detach(), tensor(expected), rtol=0, atol=1e-6)


def padded(flat: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask.bool(), flat.detach())


def means(losses: torch.Tensor, segments: Segments) -> dict[str, torch.Tensor]:
    totals = Totals.of_lengths(segments.lengths)
    return {
        "token": rl.token_mean(losses, totals),
        "sequence": rl.seq_mean_token_mean(losses, segments, totals),
        "sum": rl.seq_mean_token_sum(losses, totals),
    }


@pytest.mark.parametrize("case", cases("gmpo"))
def test_gmpo(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    segments, logp, old = response_tokens(
        tensor(inputs["mask"]), tensor(inputs["logp"]), tensor(inputs["old"])
    )
    advantages = tensor(inputs["advantages_seq"])
    loss = rl.gmpo(
        logp,
        old,
        segments.spread(advantages),
        segments,
        clip_low=params["eps_log_low"],
        clip_high=params["eps_log_high"],
    )
    close(segments.means(loss.losses) / -advantages, expected["geo_ratio"])
    close(means(loss.losses, segments)["sequence"], expected["loss"])


@pytest.mark.parametrize("case", cases("sapo"))
def test_sapo(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask = tensor(inputs["mask"])
    segments, logp, old, advantages = response_tokens(
        mask, tensor(inputs["logp"]), tensor(inputs["old"]), tensor(inputs["advantages"])
    )
    logp.requires_grad_()
    loss = rl.sapo(
        logp, old, advantages, tau_positive=params["tau_pos"], tau_negative=params["tau_neg"]
    ).losses
    close(padded(loss, mask), expected["token_loss"])
    close(padded(loss / -advantages, mask), expected["gate"])
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    close(padded(slope / -advantages / (logp - old).exp(), mask), expected["dgate_dr"])
    close(means(loss, segments)["sequence"], expected["seq_mean_token_mean"])


TOPR = {case.id: case.values[0] for case in cases("topr_tis_pg")}


@pytest.mark.parametrize("name", [name for name in TOPR if name.startswith("TOPR")])
def test_topr_is_that_of_the_paper(name: str) -> None:
    inputs, expected = TOPR[name]["inputs"], TOPR[name]["expected"]
    mask, logp = tensor(inputs["mask"]), tensor(inputs["logp"]).requires_grad_()
    segments, flat, old = response_tokens(mask, logp, tensor(inputs["old"]))
    rewards = rl.raw_reward(tensor(inputs["reward"]))
    losses = rl.topr(flat, old, segments.spread(rewards), segments).losses
    close(segments.sums(losses), expected["sequence_loss_sum_logp"])
    close(segments.sums(losses) / (-rewards * segments.sums(flat)), expected["sequence_weight"])
    close(means(losses, segments)["sum"], expected["loss_mean"])
    divided = means(losses, segments)["sequence"]
    close(divided, expected["loss_mean_divided_by_length"])
    divided.backward()
    assert logp.grad is not None
    close(logp.grad, expected["dloss_mean_divided_by_length_dlogp"])


@pytest.mark.parametrize(
    ("name", "loss", "mean"),
    [
        ("ROLL topr (token ratio)", "topr_token", "sequence"),
        ("ROLL tis (token ratio, all samples)", "truncated_gradient", "sequence"),
        ("vanilla", "policy_gradient", "token"),
        ("kimi15", "kimi", "token"),
    ],
)
def test_weighted_policy_gradients(name: str, loss: str, mean: str) -> None:
    inputs, params, expected = TOPR[name]["inputs"], TOPR[name]["params"], TOPR[name]["expected"]
    mask, logp = tensor(inputs["mask"]), tensor(inputs["logp"]).requires_grad_()
    segments, flat, old, advantages = response_tokens(
        mask, logp, tensor(inputs["old"]), tensor(inputs["advantages"])
    )
    options = {"tau": params.get("tau"), "weight_high": params.get("upper", 1.0)}
    losses = rl.POLICY_LOSSES.bind(loss, options)(
        logprobs=flat, old_logprobs=old, advantages=advantages, segments=segments
    ).losses
    close(padded(losses, mask), expected["token_loss"])
    total = means(losses, segments)[mean]
    key = {"sequence": "seq_mean_token_mean", "token": "token_mean"}[mean]
    close(total, expected[key])
    total.backward()
    assert logp.grad is not None
    close(logp.grad, expected[f"d{key}_dlogp"])


@pytest.mark.parametrize("case", cases("raftpp"))
def test_raft_pp(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask = tensor(inputs["mask"])
    segments, logp, old = response_tokens(mask, tensor(inputs["logp"]), tensor(inputs["old"]))
    advantages = rl.raft_pp(tensor(inputs["rewards"]), torch.tensor(inputs["group"]))
    losses = rl.clipped_surrogate(
        logp, old, segments.spread(advantages), clip_low=params["eps"], clip_high=params["eps"]
    ).losses
    total = means(losses, segments)["sequence"]
    if "token_loss" in expected:
        close(padded(losses, mask), expected["token_loss"])
        close(total, expected["mean_over_all_sequences"])
    else:
        close(advantages, [float(kept) for kept in expected["keep_max_and_positive"]])
        close(total, expected["loss_keep_max_and_positive"])


@pytest.mark.parametrize("case", cases("segment_ratio"))
def test_the_ratio_of_each_turn(case: Any) -> None:
    mask = torch.tensor(case["inputs"]["mask"])
    _, logp, old = response_tokens(mask, tensor(case["inputs"]["logp"]), tensor(case["inputs"]["old"]))
    turns = Turns.of_mask(mask)
    ratio = turns.tokens.spread(rl.sequence_ratio(logp - old, turns.tokens))
    close(padded(ratio, mask), case["expected"]["ratio"])
    same = rl.turn_surrogate(logp, old, torch.ones_like(logp), turns, clip_low=1.0, clip_high=9.0)
    close(-same.losses, ratio.tolist())


IPA = {case.id: case.values[0] for case in cases("ipa_chunk")}


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_ipa_chunk(name: str) -> None:
    inputs, params, expected = IPA[name]["inputs"], IPA[name]["params"], IPA[name]["expected"]
    logp = tensor(inputs["logp"]).requires_grad_()
    old, sampled = tensor(inputs["old_megatron"]), tensor(inputs["sampled_sglang"])
    segments = Segments.of_lengths(torch.tensor([len(logp)]))
    lengths = torch.tensor([len(chunk) for chunk in inputs["chunks"]])
    turns = Turns(
        tokens=Segments.of_lengths(lengths), sequences=Segments.of_lengths(torch.tensor([len(lengths)]))
    )
    rewards = torch.zeros(len(lengths), dtype=torch.float64)
    rewards[-1] = inputs["R_final"]
    close(rl.turn_returns(rewards, turns, gamma=params["gamma"]), expected["G"])
    returns = rl.turn_reinforce(rewards, turns, gamma=params["gamma"])
    close(rl.sequence_ratio(logp - old, turns.tokens), expected["rho_c"])
    close(rl.sequence_ratio(old - sampled, turns.tokens), expected["mismatch_geo"])
    loss = rl.ipa_chunk(logp, old, sampled, returns, turns, mismatch_high=params["H"]).losses.sum()
    close(loss, expected["surrogate_loss_sum"])
    loss.backward()
    assert logp.grad is not None
    close(-logp.grad, expected["token_coefficient_of_grad_logp"])
    baseline = rl.ipa_trajectory(
        logp, old, sampled, torch.full_like(logp, inputs["R_final"]), segments, mismatch_high=params["H"]
    )
    close(baseline.losses.sum(), expected["baseline_eq6"]["surrogate_loss_sum"])


def test_the_hybrid_of_imitation_and_reinforcement() -> None:
    inputs, params = IPA["hybrid objective"]["inputs"], IPA["hybrid objective"]["params"]
    chunks = [tensor(chunk) for chunk in inputs["expert_chunk_logp"]]
    expert, own = torch.cat(chunks), tensor([-2.918])
    lengths = torch.tensor([*(len(chunk) for chunk in chunks), 1])
    turns = Turns(tokens=Segments.of_lengths(lengths), sequences=Segments.of_lengths(torch.tensor([2, 1])))
    # One token of reinforcement whose loss is the case's: advantage 1, log-prob minus that loss.
    logp = torch.cat([expert, own])
    returns = turns.tokens.spread(tensor([*inputs["expert_chunk_return"], 1.0]))
    marks = turns.tokens.spread(tensor([1.0, 1.0, 0.0]))
    loss = rl.ipa_chunk(
        logp,
        logp,
        logp,
        returns,
        turns,
        marks,
        mismatch_high=2.0,
        imitation_coef=params["lambda_IL"],
        rl_coef=params["lambda_RL"],
    ).losses.sum()
    close(loss, IPA["hybrid objective"]["expected"]["total"])


CORRECTIONS = {
    "token TIS, cap 1.5": rl.Correction(weight="token", cap=1.5),
    "IcePop: keep ratio inside [0.5,2.0], else 0": rl.Correction(
        weight="token", reject="token", low=0.5, high=2.0
    ),
    "sequence TIS, cap 2.0": rl.Correction(weight="sequence", cap=2.0),
    "sequence MIS [0.5,2.0]": rl.Correction(weight="sequence", reject="sequence", low=0.5, high=2.0),
    "geometric rejection [0.9,1.1] (mask only)": rl.Correction(reject="geometric", low=0.9, high=1.1),
    "sequence MIS [0.4,2.0] (one kept)": rl.Correction(
        weight="sequence", reject="sequence", low=0.4, high=2.0
    ),
    "geometric rejection [0.7,1.1] (one kept)": rl.Correction(reject="geometric", low=0.7, high=1.1),
}
MISMATCH = {case.id: case.values[0] for case in cases("train_infer_correction")}


def corrected(inputs: Any, algorithm: rl.Algorithm, totals: Totals | None = None) -> rl.Terms:
    segments, logp, old, infer, advantages = response_tokens(
        tensor(inputs["mask"]), *(tensor(inputs[key]) for key in ("logp", "old", "infer", "advantages"))
    )
    return rl.PolicyObjective(algorithm).terms(
        rl.TokenBatch(
            logprobs=logp,
            entropy=None,
            segments=segments,
            totals=totals or Totals.of_lengths(segments.lengths),
            columns={"old_logprobs": old, "behavior_logprobs": infer, "advantages": advantages},
        )
    )


def test_every_case_of_the_corrections_is_bound() -> None:
    assert CORRECTIONS.keys() | {"ratios"} == MISMATCH.keys()


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_multiply_the_loss_of_each_token(name: str) -> None:
    inputs, params, expected = MISMATCH[name]["inputs"], MISMATCH[name]["params"], MISMATCH[name]["expected"]
    mask = tensor(inputs["mask"])
    segments, old, infer = response_tokens(mask, tensor(inputs["old"]), tensor(inputs["infer"]))
    weights = rl.correction_weights(old, infer, CORRECTIONS[name], segments)
    close(padded(weights.weights, mask), expected["weight"])
    clips = {"clip_low": params["eps"], "clip_high": params["eps"]}
    algorithm = rl.make_algorithm("dapo", correction=CORRECTIONS[name], **clips)
    close(corrected(inputs, algorithm).loss, expected["sum_over_tokens / original_token_count"])
    if "sum_over_tokens / surviving_token_count" in expected:
        kept = segments.sums(weights.kept.double()).long()
        rule = {"denominator": "surviving", **_fields(CORRECTIONS[name])}
        algorithm = rl.make_algorithm("dapo", correction=rule, **clips)
        loss = corrected(inputs, algorithm, Totals.of_lengths(kept)).loss
        close(loss, expected["sum_over_tokens / surviving_token_count"])


def _fields(rule: rl.Correction) -> dict[str, Any]:
    return {"weight": rule.weight, "reject": rule.reject, "low": rule.low, "high": rule.high}


def test_mismatch_ratios_at_each_granularity() -> None:
    case = MISMATCH["ratios"]
    mask = tensor(case["inputs"]["mask"])
    segments, old, infer = response_tokens(
        mask, tensor(case["inputs"]["old"]), tensor(case["inputs"]["infer"])
    )
    close(padded(rl.mismatch_ratio(old, infer, "token", segments), mask), case["expected"]["token"])
    for granularity in ("geometric", "sequence"):
        ratio = rl.mismatch_ratio(old, infer, granularity, segments)  # type: ignore[arg-type]
        close(segments.means(ratio), case["expected"][granularity])


@pytest.mark.parametrize("case", cases("decoupled_ppo"))
def test_decoupled_ppo_is_the_surrogate_corrected_by_the_token_ratio(case: Any) -> None:
    eps = case["params"]["eps"]
    algorithm = rl.make_algorithm("decoupled_ppo", clip_low=eps, clip_high=eps)
    terms = corrected(case["inputs"], algorithm)
    close(terms.loss, case["expected"]["token_mean"])
    mask = tensor(case["inputs"]["mask"])
    weights = terms.metrics["training/correction_weight"].values
    close(padded(weights, mask), case["expected"]["behave_weight"])


@pytest.mark.parametrize("case", cases("value_loss"))
def test_value_loss(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    segments, values, old, returns = response_tokens(
        tensor(inputs["mask"]), *(tensor(inputs[key]) for key in ("values", "old_values", "returns"))
    )
    for clip, name in ((case["params"]["value_clip"], "clipped"), (None, "unclipped")):
        mean = means(rl.value_loss(values, old, returns, clip=clip), segments)
        close(mean["token"], expected[f"{name}_token_mean"])
        close(mean["sequence"], expected[f"{name}_seq_mean_token_mean (ROLL)"])


@pytest.mark.parametrize("case", cases("r3_routing_replay"))
def test_routing_replay(case: Any) -> None:
    logits = tensor(case["inputs"]["train_logits"]).requires_grad_()
    experts = torch.tensor(case["inputs"]["recorded_experts"])
    gates = rl.replayed_gates(logits, experts)
    close(gates, case["expected"]["replayed_gates"])
    (slope,) = torch.autograd.grad(gates[0, 0], logits)
    assert slope[0, [0, 2]].abs().min() > 0
    assert not slope[0, [1, 3]].any()
    assert torch.autograd.gradcheck(lambda x: rl.replayed_gates(x, experts), (logits,))
