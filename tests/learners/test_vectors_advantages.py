"""Advantage estimators agree with an independent float64 generator, to 1e-6."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import roll_learners as rl
import torch
from roll_learners import Rhythm, RhythmSignals, Segments, Totals, Turns, response_tokens

VECTORS = Path(__file__).parents[1] / "data" / "vectors"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.detach().double(), tensor(expected), rtol=0, atol=1e-6)


def padded(flat: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask.bool(), flat.detach())


@pytest.mark.parametrize("case", cases("outcome_advantages"))
def test_estimators_with_another_baseline(case: Any) -> None:
    rewards, groups = tensor(case["inputs"]["rewards"]), torch.tensor(case["inputs"]["group"])
    greedy = case["inputs"]["greedy_reward_per_group"]
    per_group = greedy.values() if isinstance(greedy, dict) else greedy
    expected = case["expected"]
    close(rl.remax(rewards, tensor([*per_group])[groups]), expected["remax"])
    segments = Segments.of_lengths(torch.tensor(case["inputs"]["response_lengths"]))
    close(rl.opo(rewards, groups, segments), expected["opo_length_weighted_baseline"])
    close(rl.gpg(rewards, groups), expected["gpg_fnorm1"])
    assert expected["gpg_alpha"] == len(rewards) / (len(rewards) - 4)  # one group of four says nothing
    close(rl.raft_pp(rewards, groups), expected["raftpp_keep_max_reward_in_group"])
    key = "batch_norm_ddof1 (REINFORCE++ on sequence rewards)"
    close(rl.batch_normalised(rewards, eps=case["params"]["eps"]), expected[key])
    kept = rl.difficulty_mask(rewards.numpy(), groups.numpy(), low=0.1, high=0.95)
    wanted = [expected["roll_difficulty_keep_0.1_0.95"][str(group)] for group in groups.tolist()]
    assert kept.tolist() == wanted


@pytest.mark.parametrize("case", cases("gigpo"))
def test_gigpo(case: Any) -> None:
    trajectories, params, expected = case["inputs"]["trajectories"], case["params"], case["expected"]
    names = sorted({state for t in trajectories for state in t["states"]})
    states = torch.tensor([names.index(state) for t in trajectories for state in t["states"]])
    turn_rewards = tensor([reward for t in trajectories for reward in t["rewards"]])
    sequences = Segments.of_lengths(torch.tensor([len(t["states"]) for t in trajectories]))
    turns = Turns(tokens=Segments.of_lengths(torch.full((len(states),), 2)), sequences=sequences)
    rewards, groups = sequences.sums(turn_rewards), torch.zeros(len(trajectories), dtype=torch.int64)
    advantages = rl.gigpo(
        rewards,
        groups,
        turn_rewards,
        states,
        turns,
        gamma=params["gamma"],
        omega=params["omega"],
        eps=params.get("std_eps", 1e-6),
        ddof=params.get("ddof", 1),
        by_deviation=params["F_norm"] == "std",
    )
    close(advantages[::2], [*chain(*expected["A_total"])])
    assert torch.equal(advantages[::2], advantages[1::2])
    if "step_returns" in expected:
        close(
            rl.turn_returns(turn_rewards, turns, gamma=params["gamma"]), [*chain(*expected["step_returns"])]
        )


def test_tokens_of_a_common_beginning_share_the_mean_advantage() -> None:
    case, branching = (parameter.values[0] for parameter in cases("arpo_hard_advantage"))
    names, sets = [*case["inputs"]["advantages"]], case["inputs"]["token_owner_sets"]
    # Each owner's tokens; a set of owners is one token of the tree, and its number the node.
    owned = [(name, node) for name in names for node, owners in enumerate(sets) if name in owners]
    advantages = tensor([case["inputs"]["advantages"][name] for name, _ in owned])
    nodes = torch.tensor([node for _, node in owned])
    credited = rl.hard_credit(advantages, nodes)
    for (_, node), value in zip(owned, credited.tolist(), strict=True):
        assert value == pytest.approx(case["expected"]["token_advantage"][node], abs=1e-6)
    points = rl.branch_points(tensor(branching["inputs"]["delta_H"]), **branching["params"])
    close(points.probabilities, branching["expected"]["P"])
    assert points.branch.tolist() == branching["expected"]["branch"]


def test_crucial_chunks_are_those_whose_prefix_makes_success_likely() -> None:
    case = json.loads((VECTORS / "ipa_chunk.json").read_text())["cases"][3]
    rates = case["inputs"]["success_rate_after_prefix_of_k_expert_chunks"]
    expected = case["expected"]["crucial_chunk_numbers_1based"]
    assert rl.crucial_chunks(rates, **case["params"]) == expected


def test_asymmetric_ppo_with_two_critics() -> None:
    case, dealing = (parameter.values[0] for parameter in cases("asyppo"))
    inputs, params, expected = case["inputs"], case["params"], case["expected"]
    mask = torch.tensor(inputs["mask"])
    keys = ("values_critic0", "values_critic1", "logp", "old", "entropy")
    segments, v0, v1, logp, old, entropy = response_tokens(mask, *(tensor(inputs[key]) for key in keys))
    values = torch.stack([v0, v1])
    rewards = rl.token_rewards(tensor(inputs["terminal_reward"]), segments)
    advantages = rl.gae(
        rewards, rl.mean_values(values), segments, gamma=params["gamma"], lam=params["lam"]
    ).advantages
    sigma = rl.disagreement(values)
    differ = rl.where_critics_differ(sigma, params["k"])
    agree = rl.where_critics_agree(sigma, params["h"])
    close(padded(rl.mean_values(values), mask), expected["Vbar"])
    close(padded(sigma, mask), expected["sigma_ddof0"])
    close(padded(advantages, mask), expected["advantages"])
    assert padded(differ.long(), mask).tolist() == expected["I_A"]
    assert padded(agree.long(), mask).tolist() == expected["I_H"]
    algorithm = rl.make_algorithm(
        "appo", clip_low=params["eps"], clip_high=params["eps"], entropy_coef=params["beta"]
    )
    terms = rl.PolicyObjective(algorithm).terms(
        rl.TokenBatch(
            logprobs=logp,
            entropy=entropy,
            segments=segments,
            totals=Totals.of_lengths(segments.lengths),
            columns={
                "old_logprobs": old,
                "advantages": torch.where(differ, advantages, 0.0),
                "entropy_weights": agree.double(),
            },
        )
    )
    close(terms.loss, expected["loss"])
    owners = rl.deal_responses(torch.zeros(len(mask), dtype=torch.int64), params["M"])
    returns = rl.reinforce(rewards, segments, gamma=params["gamma"])
    for m, value in enumerate(values):
        own = segments.spread(owners) == m
        losses = rl.value_loss(value[own], value[own], returns[own], coef=algorithm.critic.coef)
        close(losses.mean(), expected["critic_mse"][m])
    prompts = torch.arange(dealing["inputs"]["n_prompts"]).repeat_interleave(
        dealing["inputs"]["responses_per_prompt"]
    )
    dealt = rl.deal_responses(prompts, dealing["inputs"]["M"]).reshape(dealing["inputs"]["n_prompts"], -1)
    assert dealt.tolist() == dealing["expected"]["assignment_by_response_index"]


RHYTHM = [parameter.values[0] for parameter in cases("attention_rhythm")]


def rhythm_of(params: Any, rule: str, **others: Any) -> Rhythm:
    return Rhythm(
        rule=rule,  # type: ignore[arg-type]
        amplification=params["gamma_amp"],
        share=params["q"],
        window=params["W"],
        nearest=params["H_lo"],
        farthest=params["H_hi"],
        heads=params["head_quantile"],
        lookback=params["k"],
        moved=params["alpha"],
        tau_waad=params["tau_waad"],
        tau_delta=params["tau_delta"],
        **others,
    )


@pytest.mark.parametrize("case", RHYTHM, ids=[case["name"] for case in RHYTHM])
def test_attention_rhythm(case: Any) -> None:
    maps, params, expected = tensor(case["inputs"]["attention_heads"]), case["params"], case["expected"]
    responses = torch.arange(case["inputs"]["response_start"], maps.shape[-1])
    rules = {rule: rhythm_of(params, rule) for rule in ("local", "global", "coupled")}
    whole = rl.head_signals(maps[:, responses], responses, responses, rules["local"])
    chunks = [rl.head_signals(maps[:, part], part, responses, rules["local"]) for part in responses.split(3)]
    for value, parts in zip(whole, zip(*chunks, strict=True), strict=True):
        torch.testing.assert_close(value, sum(parts))
    close(whole.spans, expected["span_per_head"])
    signals = rl.choose_heads(whole, params["head_quantile"])
    close(signals.waad, expected["waad"])
    close(signals.fai, expected["fai"])
    close(rl.look_back_changes(signals.waad), expected["delta"])
    for rule in rules:
        close(rl.rhythm_weights(signals, rules[rule]), expected[f"gamma_{rule}"])
    weights = rl.rhythm_weights(signals, rules["coupled"])
    if "advantages" in case["inputs"]:
        advantages = tensor(case["inputs"]["advantages"])
        close(rl.scale_advantages(advantages, weights), expected["scaled_advantage_both_signs"])
        one = rl.scale_advantages(advantages, weights, both_signs=False)
        close(one, expected["scaled_advantage_nonnegative_only"])
    else:
        for sign in ("positive", "negative"):
            scaled = weights * case["inputs"][f"advantage_{sign}"]
            close(scaled, expected[f"scaled_{sign}_advantage"])


def test_a_plan_shared_by_two_anchors_is_credited_once() -> None:
    # Anchors at 1 and 2 follow the jump at 0; by hand both lose half of 0.5 and token 0 gains it once.
    signals = RhythmSignals(waad=tensor([0.0, 9.0, 9.0, 9.0]), fai=tensor([0.0, 0.9, 0.8, 0.1]))
    rule = Rhythm(rule="coupled", share=0.5, lookback=2, moved=0.5, tau_waad=10.0, tau_delta=1.0)
    close(rl.rhythm_weights(signals, rule), [1.25, 1.25, 1.25, 1.0])


def test_on_policy_distillation() -> None:
    pure, two = (parameter.values[0] for parameter in cases("on_policy_distillation"))
    inputs, mask = pure["inputs"], torch.tensor(pure["inputs"]["mask"])
    keys = ("student_sampled_logp", "teacher_logp", "current_logp", "rl_advantages")
    segments, student, teacher, current, own = response_tokens(mask, *(tensor(inputs[key]) for key in keys))
    advantages = rl.on_policy_distillation(student, [teacher], [1.0])
    close(padded(advantages, mask), pure["expected"]["pure_advantages"])
    with_k3 = rl.on_policy_distillation(student, [teacher], [1.0], estimator=rl.k3)
    close(padded(with_k3, mask), pure["expected"]["pure_with_k3"])
    mixed = rl.on_policy_distillation(student, [teacher], [pure["params"]["opd_kl_coef"]], advantages=own)
    close(padded(mixed, mask), pure["expected"]["mixed_advantages"])
    losses = rl.importance_gradient(current, student, advantages).losses
    loss = rl.token_mean(losses, Totals.of_lengths(segments.lengths))
    close(loss, pure["expected"]["importance_loss_token_mean"])
    keys = ("student_sampled_logp", "teacher1_logp", "teacher2_logp")
    _, student, first, second = response_tokens(mask, *(tensor(two["inputs"][key]) for key in keys))
    both = rl.on_policy_distillation(student, [first, second], two["params"]["coef"])
    close(padded(both, mask), two["expected"]["advantages"])


@pytest.mark.parametrize("case", cases("adaptive_kl_controller"))
def test_the_weight_of_kl_follows_its_target(case: Any) -> None:
    inputs, params = case["inputs"], case["params"]
    controller = rl.KlController(inputs["beta"], target=params["target"], horizon=params["horizon"])
    coef = controller.observe(inputs["current_kl"], sequences=inputs["n_steps"])
    assert coef == pytest.approx(case["expected"]["new_beta"], abs=1e-9)
    assert controller.coef == coef
