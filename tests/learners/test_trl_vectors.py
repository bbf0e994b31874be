"""Presets agree in loss and gradient with numbers that TRL 1.16's own trainer computed, in float64."""

import json
from pathlib import Path
from typing import Any

import pytest
import roll_learners as rl
import torch
from roll_learners import Metric, PolicyObjective, TokenBatch, Totals, response_tokens

VECTORS = Path(__file__).parents[1] / "data" / "vectors_trl"
FAMILY = json.loads((VECTORS / "grpo_family.json").read_text())
KL = {"kl": {"placement": "loss", "estimator": "k3", "coef": 0.04}}

# Our algorithm for each of TRL's configurations.
ALGORITHMS: dict[str, rl.Algorithm] = {
    "grpo": rl.make_algorithm("grpo"),
    "grpo_clip_higher": rl.make_algorithm("grpo", clip_high=0.28),
    "grpo_beta0.04": rl.make_algorithm("grpo", **KL),
    "grpo_two_sided_delta1.5": rl.make_algorithm("grpo", dual_clip=1.5),
    "bnpo": rl.make_algorithm("grpo", aggregation="token_mean"),
    "dr_grpo": rl.make_algorithm("dr_grpo", horizon=16),
    "dapo": rl.make_algorithm("dapo"),
    "dapo_toolmask": rl.make_algorithm("dapo"),
    "gspo": rl.make_algorithm("gspo"),
    "gspo_wide": rl.make_algorithm("gspo", clip_low=0.2, clip_high=0.2),
    "cispo": rl.make_algorithm("cispo", clip_high=5.0 - 1),
    "cispo_tight1.1": rl.make_algorithm("cispo", clip_high=1.1 - 1),
    "sapo": rl.make_algorithm("sapo"),
    "grpo_biascorrkl": rl.make_algorithm(
        "grpo", kl={"placement": "loss", "estimator": "k3_importance", "coef": 0.04}
    ),
    "dapo_entropy_bonus0.01": rl.make_algorithm("dapo", entropy_coef=0.01),
}


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_loss_and_gradient_are_those_of_trl(name: str) -> None:
    inputs, case = FAMILY["inputs"], FAMILY["cases"][name]
    mask = torch.tensor(inputs["completion_mask"])
    if case["config"]["use_tool_mask"]:
        mask = mask * torch.tensor(inputs["tool_mask"])
    logps = tensor(inputs["per_token_logps"]).requires_grad_()
    old, ref, entropies = (
        tensor(inputs[key]) for key in ("old_per_token_logps", "ref_per_token_logps", "entropies")
    )
    segments, flat, old, ref, entropies = response_tokens(mask, logps, old, ref, entropies)
    batch = TokenBatch(
        logprobs=flat,
        entropy=entropies,
        segments=segments,
        totals=Totals.of_lengths(segments.lengths),
        columns={
            "old_logprobs": old,
            "ref_logprobs": ref,
            "advantages": segments.spread(tensor(inputs["advantages"])),
        },
    )
    terms = PolicyObjective(ALGORITHMS[name]).terms(batch)
    terms.loss.backward()
    torch.testing.assert_close(terms.loss, tensor(case["loss"]), rtol=0, atol=1e-8)
    torch.testing.assert_close(logps.grad, tensor(case["grad_logps"]), rtol=0, atol=1e-8)
    assert all(isinstance(metric, Metric) for metric in terms.metrics.values())


@pytest.mark.parametrize(
    ("name", "trl"),
    [("grpo", "group"), ("dr_grpo", "none(dr_grpo)"), ("lite_ppo", "batch"), ("rloo", "rloo(leave-one-out)")],
)
def test_advantages_are_those_of_trl(name: str, trl: str) -> None:
    vectors = json.loads((VECTORS / "advantages.json").read_text())
    rewards = tensor(vectors["inputs"]["rewards"])
    groups = torch.arange(len(rewards)) // vectors["inputs"]["num_generations"]
    advantages = rl.ADVANTAGES.bind(name, {"eps": 1e-4})(rewards=rewards, groups=groups)
    torch.testing.assert_close(advantages, tensor(vectors["cases"][trl]), rtol=0, atol=1e-8)
