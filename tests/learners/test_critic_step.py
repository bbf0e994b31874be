"""Policy-gradient steps with critics: PPO, and asymmetric PPO with several."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    LearnerError,
    Roles,
    Sample,
    StepResult,
    UpdateResult,
    explained_variance,
    make_algorithm,
    policy_step,
    whiten,
)

Make = Callable[..., Any]


class RecordingCritic:
    """Values by a formula, which each update shifts; keeps what it was asked."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.updates: list[dict[str, Any]] = []
        self.valued: list[int] = []

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self.valued.append(len(self.updates))
        return [np.where(s.response_mask, 0.01 * s.token_ids + self.shift, 0) for s in samples]

    def update(self, samples: Sequence[Sample], objective: Any, **columns: Any) -> UpdateResult:
        self.updates.append({"samples": list(samples), **columns})
        return UpdateResult(metrics={"skipped_steps": 0.0, "tokens": 3.0, "vf_loss": 0.5, "lr": 0.1})


class RecordingLearner:
    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        return [np.where(s.response_mask, -1.0, 0.0) for s in samples]

    def update(self, samples: Sequence[Sample], objective: Any, **columns: Any) -> UpdateResult:
        self.updates.append({"samples": list(samples), **columns})
        tokens = float(sum(s.response_tokens for s in samples))
        return UpdateResult(metrics={"skipped_steps": 0.0, "tokens": tokens, "lr": 0.1})


def run(
    learner: Any, samples: Sequence[Sample], algorithm: Any, critics: Sequence[Any], **settings: Any
) -> StepResult:
    roles = Roles(critics=critics, update_actor=settings.pop("update_actor", True))
    given = {"mini_batches": 1, "epochs": 1, "rng": np.random.default_rng(0)} | settings
    return policy_step(learner, samples, algorithm, roles=roles, **given)


def by_index(update: dict[str, Any], column: str) -> dict[int, np.ndarray]:
    return dict(zip(update["indices"], update[column], strict=True))


def test_ppo_takes_values_first_then_trains_the_critic_on_gae_returns(make_samples: Make) -> None:
    learner, critic, samples = RecordingLearner(), RecordingCritic(), make_samples((1, 0, 0.5))
    algorithm = make_algorithm("ppo", whiten=False, lam=1.0)
    result = run(learner, samples, algorithm, [critic], mini_batches=2)
    assert critic.valued == [0]
    assert len(critic.updates) == 2
    for update in critic.updates:
        for sample, returns, old in zip(
            update["samples"], update["returns"], update["old_values"], strict=True
        ):
            mask = sample.response_mask
            # Under lambda 1 and gamma 1 the return of every token is the reward at the end.
            np.testing.assert_allclose(returns[mask], sample.reward, atol=1e-12)
            np.testing.assert_allclose(old[mask], 0.01 * sample.token_ids[mask])
    trained = by_index(learner.updates[0], "advantages") | by_index(learner.updates[1], "advantages")
    for i, advantages in trained.items():
        mask = samples[i].response_mask
        expected = samples[i].reward - 0.01 * samples[i].token_ids[mask]
        np.testing.assert_allclose(advantages[mask], expected, atol=1e-12)
    assert result.metrics["critic/vf_loss"] == 0.5
    assert result.metrics["critic/values/max"] == pytest.approx(
        max(0.01 * s.token_ids[s.response_mask].max() for s in samples)
    )
    assert result.metrics["critic/explained_variance"] < 1
    assert "critic/disagreement/mean" not in result.metrics


def test_appo_deals_responses_updates_first_and_averages_all_critics(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 1, 1, 0, 1, 0), group_size=4)
    critics = [RecordingCritic(0.0), RecordingCritic(0.2)]
    result = run(learner, samples, make_algorithm("appo", entropy_coef=0.0), critics)
    for m, critic in enumerate(critics):
        assert critic.valued == [1]  # after its one update
        (update,) = critic.updates
        assert sorted(update["indices"]) == [i for i in range(8) if i % 2 == m]
        assert "old_values" not in update
        for sample, returns in zip(update["samples"], update["returns"], strict=True):
            np.testing.assert_allclose(returns[sample.response_mask], sample.reward)
    # Both critics differ by 0.2 everywhere, so the earliest fifth of the tokens is left out.
    advantages = by_index(learner.updates[0], "advantages")
    tokens = sum(s.response_tokens for s in samples)
    zeros = sum(int((advantages[i][samples[i].response_mask] == 0).sum()) for i in advantages)
    left_out = tokens - sum(samples[i].response_tokens for i in advantages) + zeros
    assert left_out == int(0.2 * tokens)
    assert result.metrics["critic/disagreement/mean"] == pytest.approx(0.1)
    assert {"critic_0/vf_loss", "critic_1/vf_loss"} <= result.metrics.keys()


def test_tokens_on_which_critics_differ_most_get_no_entropy_bonus(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 1))

    class ByToken(RecordingCritic):
        def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
            return [np.where(s.response_mask, 1.0 * s.token_ids, 0) for s in samples]

    run(learner, samples, make_algorithm("appo"), [RecordingCritic(), ByToken()])
    weights = by_index(learner.updates[0], "entropy_weights")
    flat = np.concatenate([weights[i][samples[i].response_mask] for i in range(4)])
    ids = np.concatenate([samples[i].token_ids[samples[i].response_mask] for i in range(4)])
    count = int(0.2 * len(flat))
    assert (flat == 0).sum() == count
    assert ids[flat == 0].min() >= np.sort(ids)[-count]


def test_a_warm_up_leaves_the_actor_alone(make_samples: Make) -> None:
    learner, critic = RecordingLearner(), RecordingCritic()
    result = run(learner, make_samples(), make_algorithm("ppo"), [critic], update_actor=False, epochs=3)
    assert (learner.updates, result.updates, len(critic.updates)) == ([], 0, 3)
    assert not any(name.startswith("actor/") for name in result.metrics)


def test_samples_without_a_verdict_reach_no_critic_and_skipped_updates_name_the_batch(
    make_samples: Make, make_critic: Make, make_learner: Make
) -> None:
    samples = make_samples((float("nan"), 1, 0, 1))
    critic = make_critic()
    with torch.no_grad():
        critic.model.score.weight.fill_(float("nan"))
    result = run(make_learner(), samples, make_algorithm("ppo", critic={"targets": "monte_carlo"}), [critic])
    assert {name for skipped in result.skipped for name in skipped.samples} <= {1, 2, 3}
    assert result.skipped[0].samples == (1, 2, 3)


def test_ppo_and_appo_learn_values_and_policy_together(
    make_learner: Make, make_critic: Make, make_samples: Make
) -> None:
    for preset, count in (("ppo", 1), ("appo", 2)):
        learner, samples = make_learner(learning_rate=5e-3), make_samples()
        critics = [make_critic(seed=seed, learning_rate=2e-2) for seed in range(count)]
        first = run(learner, samples, make_algorithm(preset), critics, epochs=2).metrics
        for seed in range(12):
            rng = np.random.default_rng(seed)
            last = run(learner, samples, make_algorithm(preset), critics, epochs=2, rng=rng).metrics
        assert last["critic/vf_loss"] < 0.7 * first["critic/vf_loss"]
        assert last["critic/explained_variance"] > first["critic/explained_variance"]


@pytest.mark.parametrize(
    ("preset", "critics", "message"),
    [
        ("ppo", 0, "'ppo' needs a critic: policy_step needs roles.critics"),
        ("appo", 1, "'appo' compares critics: roles.critics has 1"),
        ("grpo", 1, "'grpo' uses no critic, but roles.critics has 1"),
    ],
)
def test_the_wrong_number_of_critics_is_named(
    make_samples: Make, preset: str, critics: int, message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        run(RecordingLearner(), make_samples(), make_algorithm(preset), [RecordingCritic()] * critics)
    with pytest.raises(LearnerError, match="update_actor is False and there is no critic"):
        run(RecordingLearner(), make_samples(), make_algorithm("grpo"), [], update_actor=False)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns + 5, returns).item() == 1
    assert explained_variance(torch.zeros(4), returns).item() == 0
    assert explained_variance(returns, torch.ones(4)).isnan()
    assert whiten(returns).mean().item() == pytest.approx(0, abs=1e-6)
