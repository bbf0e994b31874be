"""Edge cases of the loss maths, from `tests/data/cases/loss_maths.jsonl`, each bound by its kind."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roll_learners as rl
import torch
from roll_learners import Sample, Segments, Totals, response_tokens

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cases" / "loss_maths.jsonl").read_text().splitlines()
]
DDOF = {"sample (n-1)": 1, "population (n)": 0}
AGGREGATIONS = {
    "token_mean": "token_mean",
    "sequence_mean_of_token_mean": "seq_mean_token_mean",
    "sequence_mean_of_token_sum": "seq_mean_token_sum",
    "sum_over_tokens / (sequences * constant)": "constant_divisor",
}
Result = dict[str, Any]


def tensor(values: Any, dtype: str = "float64") -> torch.Tensor:
    """Numbers as a tensor; null is NaN and infinities are strings."""
    numbers = [
        [math.nan if v is None else float(v) for v in row] for row in np.atleast_2d(np.array(values, object))
    ]
    return torch.tensor(numbers if np.ndim(values) == 2 else numbers[0], dtype=getattr(torch, dtype))


def selected(given: Any, *names: str) -> tuple[torch.Tensor, ...]:
    """The named lists, as they are under the mask, and first their segments."""
    mask = torch.tensor(given.get("mask", [1] * len(given[names[0]])))
    rows = [tensor(given[name], given.get("dtype", "float64"))[None] for name in names]
    return response_tokens(mask[None], *rows)  # type: ignore[return-value]  # Segments come first


def completion(tokens: int, **fields: Any) -> Sample:
    return Sample.from_completion(np.ones(1, np.int32), np.ones(tokens, np.int32), **fields)


def group_advantage(given: Any) -> Result:
    rewards = tensor(given["rewards"])
    _, groups = np.unique(given["groups"], return_inverse=True)
    advantages = rl.grpo(rewards, torch.from_numpy(groups), eps=given["eps"], ddof=DDOF[given["std"]])
    taken = rl.trainable([completion(1, reward=reward) for reward in rewards.tolist()])
    return {"advantages": advantages, "loss_weight": taken.astype(int), "finite": advantages.isfinite().all()}


def loss(given: Any) -> Result:
    rows = [tensor(row).reshape(-1).requires_grad_() for row in given["token_losses"]]
    truncated = given.get("truncated", [False] * len(rows))
    samples = [completion(len(row), truncated=cut) for row, cut in zip(rows, truncated, strict=True)]
    taken = rl.trainable(samples, mask_truncated=given.get("mask_truncated", False))
    lengths = torch.tensor([len(row) if kept else 0 for row, kept in zip(rows, taken, strict=True)])
    ranks = given.get("rank_micro_batches", [[list(range(len(rows)))]])
    averaged = given.get("gradient_reduction") == "mean over ranks"
    totals = Totals.of_lengths(lengths, ranks=len(ranks) if averaged else 1)
    aggregate = rl.AGGREGATIONS.bind(AGGREGATIONS[given["aggregation"]], {"horizon": given.get("constant")})
    shares = [
        aggregate(
            losses=torch.cat([rows[i][: lengths[i]] for i in micro_batch]),
            segments=Segments.of_lengths(lengths[micro_batch]),
            totals=totals,
        )
        for micro_batches in ranks
        for micro_batch in micro_batches
    ]
    value = torch.stack(shares).sum() / (len(ranks) if averaged else 1)
    value.backward()
    gradient = max(0.0 if row.grad is None or not len(row) else row.grad.abs().max().item() for row in rows)
    return {
        "loss": value,
        "effective_loss": value,
        "gradient": gradient,
        "finite": value.isfinite() and math.isfinite(gradient),
    }


def ppo_token_loss(given: Any) -> Result:
    new, old, advantage = (tensor([given[name]]) for name in ("logp_new", "logp_old", "advantage"))
    bounds = {name: given[name] for name in ("clip_low", "clip_high", "dual_clip") if name in given}
    return {"loss": rl.clipped_surrogate(new, old, advantage, **bounds).losses[0]}


def ppo_batch_loss(given: Any) -> Result:
    mask, new = torch.tensor(given["mask"])[None], tensor(given["logp_new"]).requires_grad_()
    columns = (tensor(given[name])[None] for name in ("logp_old", "advantages"))
    segments, flat, old, advantages = response_tokens(mask, new[None], *columns)
    losses = rl.clipped_surrogate(flat, old, advantages, clip_low=0.2, clip_high=0.2).losses
    value = rl.token_mean(losses, Totals.of_lengths(segments.lengths))
    value.backward()
    result = {"loss": value, "finite": value.isfinite(), "finite_gradient": new.grad.isfinite().all()}
    if "rollout_logp" in given:
        gap = rl.probability_gap(old, selected(given, "rollout_logp")[1])
        result["counted_as"] = f"missing rollout log-probability: {gap.missing}"
        result["finite"] = result["finite"] and gap.gaps.isfinite().all()
    return result


def sequence_ratio(given: Any) -> Result:
    segments, log_ratios = selected(given, "log_ratios")
    return {"ratio": rl.sequence_ratio(log_ratios, segments)[0]}


def kl(given: Any) -> Result:
    _, logprobs, reference = selected(given, "logp", "logp_ref")
    logprobs.requires_grad_()
    values = rl.KL_ESTIMATORS.bind(given["op"].removeprefix("kl_"), {})(
        logprobs=logprobs, ref_logprobs=reference
    )
    values.sum().backward()
    return {
        "mean": values.mean(),
        "non_negative": (values >= 0).all(),
        "finite_value": values.isfinite().all(),
        "finite_gradient": logprobs.grad.isfinite().all(),
    }


def token_logp(given: Any) -> Result:
    logits = tensor(given["logits"])[None] if "logits" in given else tensor(given["probs"])[None].log()
    temperature = given.get("temperature", 1.0)
    kept = rl.kept_by_top_p(logits / temperature, given.get("top_p", 1.0))
    score = rl.token_logprobs(logits, torch.tensor([given["token"]]), temperature=temperature, kept=kept)
    engine = logits.div(temperature).softmax(-1)[0] * kept[0]
    ratio = score.exp() / (engine[given["token"]] / engine.sum())
    return {"logp": score[0], "ratio_to_trainer_with_same_convention": ratio[0]}


def gae(given: Any) -> Result:
    segments, rewards, values = selected(given, "rewards", "values")
    last = None if given["terminated"] else tensor([given["bootstrap_value"]])
    result = rl.gae(rewards, values, segments, gamma=given["gamma"], lam=given["lam"], last_values=last)
    return {"advantages": result.advantages, "returns": result.returns}


def token_reward(given: Any) -> Result:
    response, eos = np.array(given["response"]), given["eos"]
    ends, real = np.flatnonzero(response == eos), np.flatnonzero(response != given["pad"])
    length = ends[0] + 1 if len(ends) else real[-1] + 1
    rewards = rl.token_rewards(tensor([given["score"]]), Segments.of_lengths(torch.tensor([length])))
    return {"rewards": rewards.tolist() + [0.0] * (len(response) - length)}


def missing_eos(given: Any) -> Result:
    prompt, response = (np.array(given[name], np.int32) for name in ("prompt", "completion"))
    return {"missing": rl.missing_end_token(Sample.from_completion(prompt, response), given["eos"])}


def whiten(given: Any) -> Result:
    _, flat = selected(given, "values")
    mask = torch.tensor(given["mask"]).bool()
    whitened = rl.whiten(flat, ddof=DDOF[given["std"]])
    return {"values": torch.zeros(len(mask), dtype=flat.dtype).masked_scatter(mask, whitened)}


BINDINGS: dict[str, Callable[[Any], Result]] = {
    "group_advantage": group_advantage,
    "loss": loss,
    "ppo_token_loss": ppo_token_loss,
    "ppo_batch_loss": ppo_batch_loss,
    "sequence_ratio": sequence_ratio,
    "kl_k1": kl,
    "kl_k2": kl,
    "kl_k3": kl,
    "token_logp": token_logp,
    "gae": gae,
    "token_reward": token_reward,
    "missing_eos": missing_eos,
    "whiten": whiten,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case['id']}: {case['why']}") for case in CASES])
def test_the_case_holds(case: Any) -> None:
    expected = dict(case["expected"])
    tolerance = expected.pop("tol", 1e-6)
    expected.pop("or", None)  # another answer that would do as well
    result = BINDINGS[case["input"]["op"]](case["input"])
    for key, wanted in expected.items():
        if isinstance(wanted, bool | str):
            assert result[key] == wanted, key
        else:
            got = torch.as_tensor(result[key], dtype=torch.float64).detach()
            torch.testing.assert_close(got, torch.tensor(wanted).double(), rtol=0, atol=tolerance, msg=key)
