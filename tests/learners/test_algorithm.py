"""Algorithms are data that is checked when it is made."""

import pickle
from typing import Any

import pytest
from roll_learners import (
    POLICY_LOSSES,
    PRESETS,
    Algorithm,
    KlPenalty,
    LearnerError,
    make_algorithm,
    register_preset,
)
from roll_learners import algorithm as algorithm_module


def test_presets_are_those_of_the_papers() -> None:
    groups = {"grpo", "dr_grpo", "dapo", "rloo", "gpg", "opo", "lite_ppo", "maxrl", "raft_pp"}
    single = {"reinforce", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "ppo", "appo"}
    losses = {"gspo", "gmpo", "cispo", "sapo", "topr", "kimi"}
    engines = {"tis", "sequence_tis", "mis", "sequence_mis", "icepop", "geometric_rejection", "decoupled_ppo"}
    turns = {"gigpo", "turn_reinforce", "step_reinforce", "ipa", "arpo_hard"}
    assert set(PRESETS) == groups | single | losses | engines | turns | {"on_policy_distillation"}
    assert all(name == algorithm.name for name, algorithm in PRESETS.items())
    dapo = PRESETS["dapo"]
    assert (dapo.clip_low, dapo.clip_high, dapo.aggregation, dapo.kl.placement) == (
        0.2,
        0.28,
        "token_mean",
        "none",
    )


def test_overrides_replace_fields_and_kl_may_be_a_mapping() -> None:
    algorithm = make_algorithm("grpo", clip_high=0.3, kl={"placement": "loss", "coef": 0.001})
    assert algorithm.clip_high == 0.3
    assert algorithm.kl == KlPenalty(placement="loss", estimator="k3", coef=0.001)
    assert algorithm.aggregation == "seq_mean_token_mean"


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("dappo", {}, "unknown algorithm preset 'dappo': did you mean 'dapo'"),
        ("dapo", {"clip_hihg": 0.3}, "unknown algorithm field 'clip_hihg': did you mean 'clip_high'"),
        ("dapo", {"advantage": "grop"}, "unknown advantage 'grop': did you mean 'grpo'"),
        ("dapo", {"policy_loss": "gpso"}, "unknown policy loss 'gpso'"),
        ("dapo", {"aggregation": "token_maen"}, "did you mean 'token_mean'"),
        ("dapo", {"kl": {"placment": "loss"}}, "did you mean 'placement'"),
        ("dapo", {"kl": {"placement": "los", "coef": 0.1}}, "unknown KL placement 'los'"),
        ("dapo", {"kl": {"placement": "loss", "estimator": "k4", "coef": 0.1}}, "unknown KL estimator"),
        ("dapo", {"kl": {"placement": "loss"}}, "kl.coef is 0"),
        ("dapo", {"kl": {"coef": 0.1}}, "placement is 'none'"),
        ("dapo", {"kl": {"placement": "loss", "coef": -0.1}}, "kl.coef is -0.1"),
        ("dapo", {"clip_low": 1.5}, "clip_low is 1.5: allowed is 0.0 to 1.0"),
        ("dapo", {"clip_high": float("nan")}, "clip_high is nan"),
        ("dapo", {"dual_clip": 1.0}, "dual_clip is 1.0"),
        ("dapo", {"entropy_coef": -1}, "entropy_coef is -1"),
        ("dapo", {"gamma": 0.9}, "gamma is 0.9, but none of 'grpo', 'clipped_surrogate'"),
        ("gspo", {"dual_clip": 3.0}, "dual_clip is 3.0, but none of"),
        ("dapo", {"horizon": 64}, "horizon is 64, but none of"),
        ("dr_grpo", {"horizon": None}, "lacks horizon, which"),
        ("dr_grpo", {"horizon": 0}, "horizon is 0"),
        ("dapo", {"options": {"tau": 1.0}}, "unknown option .* 'tau'"),
        ("dapo", {"lam": 0.9}, "lam is 0.9, but none of"),
        ("ppo", {"lam": 1.5}, "lam is 1.5"),
        ("dapo", {"reward_clip": 0.0}, "reward_clip is 0.0: allowed are numbers above 0"),
        ("dapo", {"advantage_clip": float("inf")}, "advantage_clip is inf"),
        ("dapo", {"max_error_tokens": 0}, "max_error_tokens is 0"),
        ("dapo", {"min_group_reward": 0.9, "max_group_reward": 0.1}, "0.9 is not below max_group_reward 0.1"),
        ("dapo", {"critic": {"value_clip": 0.2}}, "advantage 'grpo' uses none"),
        ("ppo", {"critic": {"targets": "mc"}}, "unknown critic.targets 'mc': did you mean|allowed are gae"),
        ("ppo", {"critic": {"order": "before"}}, "targets must be 'monte_carlo'"),
        ("ppo", {"critic": {"agreement": 1.0}}, "critic.agreement is 1.0"),
        ("ppo", {"critic": {"coef": 0.0}}, "critic.coef is 0.0"),
        ("ppo", {"critic": {"value_clip": -1.0}}, "critic.value_clip is -1.0"),
        ("sapo", {"options": {"tau_positive": 1.0}}, "lacks tau_negative"),
        (
            "grpo",
            {"kl": {"placement": "reward", "estimator": "full", "coef": 0.1}},
            "is for kl.placement 'loss'",
        ),
        ("grpo", {"kl": {"placement": "loss", "coef": 0.1, "target": 0.1}}, "adapts the weight of 'reward'"),
        ("grpo", {"kl": {"placement": "reward", "coef": 0.1, "target": 0.0}}, "kl.target is 0.0"),
        ("grpo", {"kl": {"placement": "reward", "coef": 0.1, "horizon": 0}}, "kl.horizon is 0"),
        (
            "grpo",
            {"correction": {"weight": "tokens"}},
            "unknown correction.weight 'tokens': did you mean 'token'",
        ),
        ("grpo", {"correction": {"cap": 2.0}}, "correction.weight is 'none'"),
        ("grpo", {"correction": {"low": 0.5}}, "correction.reject is 'none'"),
        ("grpo", {"correction": {"reject": "token"}}, "neither low nor high is set"),
        ("grpo", {"correction": {"reject": "token", "low": 2.0, "high": 1.0}}, "correction.high is 1.0"),
        ("grpo", {"correction": {"max_gap": 1.5}}, "correction.max_gap is 1.5"),
        ("grpo", {"correction": {"weight": "token", "denominator": "surviving"}}, "nothing is rejected"),
        ("grpo", {"correction": {"weight": "token", "denominator": "all"}}, "unknown correction.denominator"),
        ("grpo", {"rhythm": {"rule": "locale"}}, "unknown rhythm.rule 'locale': did you mean 'local'"),
        ("grpo", {"rhythm": {"rule": "local", "share": 1.5}}, "rhythm.share is 1.5"),
        ("grpo", {"rhythm": {"rule": "local", "nearest": 200}}, "rhythm.nearest is 200"),
    ],
)
def test_a_mistake_is_named(preset: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message) as caught:
        make_algorithm(preset, **overrides)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("preset", "needed"), [("grpo", True), ("rloo", True), ("reinforce", False)])
def test_an_algorithm_knows_whether_it_compares_members_of_a_group(preset: str, needed: bool) -> None:
    assert PRESETS[preset].needs_group_baseline is needed


@pytest.mark.parametrize(
    ("preset", "needs"),
    [
        ("grpo", set()),
        ("ppo", {"critic"}),
        ("gigpo", {"turn_states"}),
        ("remax", {"greedy_baseline"}),
        ("on_policy_distillation", {"teacher"}),
    ],
)
def test_an_algorithm_says_what_it_needs_beside_rewards(preset: str, needs: set[str]) -> None:
    assert PRESETS[preset].needs == needs
    with_rhythm = make_algorithm(preset, rhythm={"rule": "local"})
    assert with_rhythm.needs == needs | {"attention"}


@pytest.mark.parametrize(
    ("preset", "behavior", "turns"),
    [("grpo", False, False), ("tis", True, False), ("ipa", True, True), ("appo", False, False)],
)
def test_an_algorithm_says_which_columns_its_loss_needs(preset: str, behavior: bool, turns: bool) -> None:
    assert (PRESETS[preset].needs_behavior, PRESETS[preset].needs_turns) == (behavior, turns)
    by_turn = make_algorithm("grpo", correction={"weight": "turn"})
    assert (by_turn.needs_behavior, by_turn.needs_turns) == (True, True)


@pytest.mark.parametrize(
    ("overrides", "inert"),
    [
        ({}, True),
        ({"entropy_coef": 0.01}, False),
        ({"kl": {"placement": "loss", "coef": 0.1}}, False),
        ({"kl": {"placement": "reward", "coef": 0.1}}, True),
    ],
)
def test_zero_advantage_adds_nothing_only_without_another_term(
    overrides: dict[str, Any], inert: bool
) -> None:
    assert make_algorithm("dapo", **overrides).zero_advantage_is_inert is inert


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICY_LOSSES, "_parts", dict(POLICY_LOSSES._parts))


@pytest.mark.usefixtures("registered")
def test_options_of_a_registered_loss_are_checked() -> None:
    @POLICY_LOSSES.register("gated")
    def gated(logprobs: Any, advantages: Any, *, tau: float, sharpness: float = 1.0) -> Any:
        return logprobs

    with pytest.raises(LearnerError, match="lacks tau, which"):
        Algorithm(policy_loss="gated")
    with pytest.raises(LearnerError, match=r"unknown option .* 'tua': did you mean 'tau'"):
        Algorithm(policy_loss="gated", options={"tua": 1.0})
    with pytest.raises(LearnerError, match=r"unknown option .* 'clip_low'"):
        Algorithm(policy_loss="gated", options={"tau": 1.0, "clip_low": 0.1})
    made = Algorithm(policy_loss="gated", options={"tau": 1.05})
    assert not made.zero_advantage_is_inert


def test_a_preset_can_be_added_once() -> None:
    try:
        register_preset(Algorithm(name="mine", clip_high=0.5))
        assert make_algorithm("mine", clip_low=0.1).clip_high == 0.5
        with pytest.raises(LearnerError, match="already registered"):
            register_preset(Algorithm(name="mine"))
    finally:
        algorithm_module._presets.pop("mine", None)
