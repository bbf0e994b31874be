"""Every formula agrees with numbers made by an independent float64 generator, to 1e-6."""

import json
from pathlib import Path
from typing import Any

import pytest
import roll_learners as rl
import torch
from roll_learners import Segments, Totals, response_tokens
from roll_learners.aggregation import constant_divisor, seq_mean_token_mean, seq_mean_token_sum, token_mean

VECTORS = Path(__file__).parents[1] / "data" / "vectors"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual, tensor(expected), rtol=0, atol=1e-6)


def padded(flat: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask.bool(), flat)


def aggregated(losses: torch.Tensor, segments: Segments, horizon: int) -> dict[str, torch.Tensor]:
    totals = Totals.of_lengths(segments.lengths)
    return {
        "token-mean": token_mean(losses, totals),
        "seq-mean-token-sum": seq_mean_token_sum(losses, totals),
        "seq-mean-token-mean": seq_mean_token_mean(losses, segments, totals),
        "seq-mean-token-sum-norm": constant_divisor(losses, totals, horizon=horizon),
    }


@pytest.mark.parametrize("case", cases("outcome_advantages"))
def test_outcome_advantages(case: Any) -> None:
    rewards, groups = tensor(case["inputs"]["rewards"]), torch.tensor(case["inputs"]["group"])
    eps, expected = case["params"]["eps"], case["expected"]
    segments = Segments.of_lengths(torch.tensor(case["inputs"]["response_lengths"]))
    close(rl.grpo(rewards, groups, eps=eps), expected["grpo_ddof1_eps1e-6"])
    close(rl.grpo(rewards, groups, eps=eps, ddof=0), expected["grpo_ddof0_eps1e-6"])
    close(rl.dr_grpo(rewards, groups), expected["dr_grpo"])
    close(rl.rloo(rewards, groups), expected["rloo"])
    close(rl.lite_ppo(rewards, groups, eps=eps), expected["liteppo_groupmean_batchstd_ddof1"])
    close(rl.lite_ppo(rewards, groups, eps=eps, ddof=0), expected["liteppo_groupmean_batchstd_ddof0"])
    whitened = rl.whiten(segments.spread(rl.dr_grpo(rewards, groups)))
    close(segments.means(whitened), expected["reinforce_pp_baseline_token_whitened"])
    whole_batch = rl.grpo(rewards, torch.zeros_like(groups), eps=eps)
    close(whole_batch, expected["batch_norm_ddof1 (REINFORCE++ on sequence rewards)"])
    kept = {str(i): not flat for i, flat in enumerate(rl.zero_spread(rewards, groups).tolist())}
    assert kept == expected["dapo_keep_group"]


@pytest.mark.parametrize("case", cases("loss_aggregation"))
def test_loss_aggregation(case: Any) -> None:
    segments, losses = response_tokens(tensor(case["inputs"]["mask"]), tensor(case["inputs"]["loss"]))
    for name, value in aggregated(losses, segments, case["params"]["horizon"]).items():
        close(value, case["expected"][name])


@pytest.mark.parametrize("case", cases("ppo_policy_loss"))
def test_ppo_policy_loss(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask = tensor(inputs["mask"])
    segments, logp, old, advantages = response_tokens(
        mask, *(tensor(inputs[key]) for key in ("logp", "old", "advantages"))
    )
    loss = rl.clipped_surrogate(
        logp,
        old,
        advantages,
        clip_low=params["eps_low"],
        clip_high=params["eps_high"],
        dual_clip=params["dual_clip_c"],
    )
    close(padded(loss.losses, mask), expected["token_loss"])
    for name, value in aggregated(loss.losses, segments, params["horizon"]).items():
        close(value, expected[f"loss_{name}"])
    close((loss.ratio < 1 - params["eps_low"]).double().mean(), expected["frac_ratio_below"])
    close((loss.ratio > 1 + params["eps_high"]).double().mean(), expected["frac_ratio_above"])


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl_estimators(name: str) -> None:
    per_token, expectation = json.loads((VECTORS / "kl_estimators.json").read_text())["cases"]
    mask = tensor(per_token["inputs"]["mask"])
    segments, logp, ref = response_tokens(
        mask, tensor(per_token["inputs"]["logp"]), tensor(per_token["inputs"]["ref"])
    )
    estimate = rl.KL_ESTIMATORS.bind(name, {})
    values = estimate(logprobs=logp, ref_logprobs=ref)
    close(padded(values, mask), per_token["expected"][name])
    means = aggregated(values, segments, 1)
    close(means["token-mean"], per_token["expected"][f"{name}_token_mean"])
    close(means["seq-mean-token-mean"], per_token["expected"][f"{name}_seq_mean_token_mean"])
    p, q = tensor(expectation["inputs"]["p"]), tensor(expectation["inputs"]["q"])
    mean = (p * estimate(logprobs=p.log(), ref_logprobs=q.log())).sum()
    close(mean, expectation["expected"][f"E_{name}"])


@pytest.mark.parametrize("case", cases("kl_in_reward"))
def test_kl_in_reward(case: Any) -> None:
    inputs = case["inputs"]
    mask = tensor(inputs["mask"])
    segments, old, ref = response_tokens(mask, tensor(inputs["old"]), tensor(inputs["ref"]))
    kl = rl.k1(old, ref)
    rewards = rl.token_rewards(tensor(inputs["scores"]), segments, kl=kl, coef=case["params"]["beta"])
    close(padded(rewards, mask), case["expected"]["token_rewards"])
    current = seq_mean_token_mean(kl, segments, Totals.of_lengths(segments.lengths))
    close(current, case["expected"]["current_kl_for_controller"])


@pytest.mark.parametrize("case", cases("dapo_loss"))
def test_dapo_loss(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    mask = tensor(inputs["mask"])
    segments, logp, old = response_tokens(mask, tensor(inputs["logp"]), tensor(inputs["old"]))
    algorithm = rl.make_algorithm(
        "dapo", clip_low=case["params"]["eps_low"], clip_high=case["params"]["eps_high"]
    )
    losses = rl.POLICY_LOSSES.bind(algorithm.policy_loss, algorithm.parameters())(
        logprobs=logp, old_logprobs=old, advantages=segments.spread(tensor(inputs["advantages_seq"]))
    ).losses
    close(padded(losses, mask), expected["token_loss"])
    means = aggregated(losses, segments, 1)
    close(means["token-mean"], expected["loss_token_mean"])
    close(means["seq-mean-token-mean"], expected["grpo_same_tokens_seq_mean_token_mean"])


@pytest.mark.parametrize("case", cases("entropy_bonus"))
def test_entropy_bonus(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    logits = tensor(inputs["logits"])
    close(rl.entropy(logits.flatten(0, 1)).reshape(logits.shape[:2]), expected["entropy"])
    segments, kept = response_tokens(torch.tensor(inputs["mask"]), logits)
    mean = token_mean(rl.entropy(kept), Totals.of_lengths(segments.lengths))
    close(mean, expected["agg_token_mean"])
    total = inputs["pg_loss"] + params["kl_coef"] * inputs["kl_loss"] - params["entropy_coef"] * mean
    close(total, expected["total_loss"])


@pytest.mark.parametrize("case", cases("gae"))
def test_gae(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    rewards, values = (torch.atleast_2d(tensor(inputs[key])) for key in ("rewards", "values"))
    mask = torch.tensor(inputs.get("mask", [[1] * rewards.shape[1]]))
    segments, rewards, values = response_tokens(mask, rewards, values)
    result = rl.gae(rewards, values, segments, gamma=case["params"]["gamma"], lam=case["params"]["lam"])
    close(padded(result.advantages, mask), torch.atleast_2d(tensor(expected["advantages"])).tolist())
    close(padded(result.returns, mask), torch.atleast_2d(tensor(expected["returns"])).tolist())
    if "whitened_advantages" in expected:
        close(padded(rl.whiten(result.advantages), mask), expected["whitened_advantages"])


@pytest.mark.parametrize("case", cases("reinforce_returns"))
def test_reinforce_returns(case: Any) -> None:
    mask = torch.tensor(case["inputs"]["mask"])
    segments, rewards = response_tokens(mask, tensor(case["inputs"]["token_rewards"]))
    returns = rl.reinforce(rewards, segments, gamma=case["params"]["gamma"])
    close(padded(returns, mask), case["expected"]["returns"])
    close(padded(rl.whiten(returns), mask), case["expected"]["whitened"])


@pytest.mark.parametrize("case", cases("gspo"))
def test_gspo(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask, logp = tensor(inputs["mask"]), tensor(inputs["logp"]).requires_grad_()
    segments, flat, old = response_tokens(mask, logp, tensor(inputs["old"]))
    close(rl.sequence_ratio(flat - old, segments), expected["s"])
    loss = rl.gspo(
        flat,
        old,
        segments.spread(tensor(inputs["advantages_seq"])),
        segments,
        clip_low=params["eps_low"],
        clip_high=params["eps_high"],
    )
    close(segments.means(loss.losses), expected["per_sequence_loss"])
    total = seq_mean_token_mean(loss.losses, segments, Totals.of_lengths(segments.lengths))
    total.backward()
    close(total, expected["loss"])
    assert logp.grad is not None
    close(logp.grad, expected["dloss_dlogp"])


@pytest.mark.parametrize("case", cases("cispo"))
def test_cispo(case: Any) -> None:
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask, logp = tensor(inputs["mask"]), tensor(inputs["logp"]).requires_grad_()
    segments, flat, old, advantages = response_tokens(
        mask, logp, tensor(inputs["old"]), tensor(inputs["advantages"])
    )
    loss = rl.cispo(flat, old, advantages, clip_low=params["eps_low"], clip_high=params["eps_high"])
    close(padded(loss.losses.detach(), mask), expected["token_loss"])
    total = token_mean(loss.losses, Totals.of_lengths(segments.lengths))
    total.backward()
    close(total, expected["loss_token_mean"])
    assert logp.grad is not None
    close(logp.grad, expected["dloss_token_mean_dlogp"])


@pytest.mark.parametrize("preset", ["lite_ppo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("case", cases("liteppo_grpo_end_to_end"))
def test_end_to_end(case: Any, preset: str) -> None:
    inputs, params = case["inputs"], case["params"]
    key = {"lite_ppo": "liteppo", "grpo": "grpo", "dr_grpo": "dr_grpo_horizon_2"}[preset]
    expected = case["expected"][key]
    overrides = {"horizon": params["horizon"]} if preset == "dr_grpo" else {}
    algorithm = rl.make_algorithm(
        preset, clip_low=params["eps"], clip_high=params["eps"], advantage_eps=params["std_eps"], **overrides
    )
    parameters = algorithm.parameters()
    advantages = rl.ADVANTAGES.bind(algorithm.advantage, parameters)(
        rewards=tensor(inputs["rewards"]), groups=torch.tensor(inputs["group"])
    )
    close(advantages, expected["advantages"])
    mask = tensor(inputs["mask"])
    segments, logp, old = response_tokens(mask, tensor(inputs["logp"]), tensor(inputs["old"]))
    losses = rl.POLICY_LOSSES.bind(algorithm.policy_loss, parameters)(
        logprobs=logp, old_logprobs=old, advantages=segments.spread(advantages)
    ).losses
    if "token_loss" in expected:
        close(padded(losses, mask), expected["token_loss"])
    loss = rl.AGGREGATIONS.bind(algorithm.aggregation, parameters)(
        losses=losses, segments=segments, totals=Totals.of_lengths(segments.lengths)
    )
    wanted = next(value for name, value in expected.items() if name.startswith("loss"))
    close(loss, wanted)
