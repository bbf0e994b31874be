"""One policy-gradient step, from scored samples to new weights."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    ADVANTAGES,
    POLICY_LOSSES,
    PRESETS,
    Algorithm,
    LearnerError,
    LocalLearner,
    LocalScorer,
    PolicyLoss,
    Roles,
    Sample,
    StepResult,
    Teacher,
    Totals,
    UpdateResult,
    make_algorithm,
    policy_step,
)

Make = Callable[..., Any]
NAN = float("nan")


class RecordingLearner:
    """Stands in for a learner: scores by a formula, and keeps what it was asked."""

    def __init__(self) -> None:
        self.scored: list[int] = []
        self.updates: list[dict[str, Any]] = []

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self.scored.append(len(samples))
        return [np.where(s.response_mask, -0.1 * s.token_ids, 0).astype(np.float32) for s in samples]

    def update(
        self,
        samples: Sequence[Sample],
        objective: Any,
        *,
        totals: Any = None,
        indices: Any = None,
        **columns: Any,
    ) -> UpdateResult:
        self.updates.append({"samples": list(samples), "totals": totals, "indices": indices, **columns})
        tokens = float(sum(s.response_tokens for s in samples))
        return UpdateResult(metrics={"skipped_steps": 0.0, "tokens": tokens, "lr": 0.1})


def result_of(
    learner: Any, samples: Sequence[Sample], algorithm: Algorithm | str = "dapo", **arguments: Any
) -> StepResult:
    settings: dict[str, Any] = {"mini_batches": 2, "epochs": 1, "rng": np.random.default_rng(0)}
    chosen = make_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
    return policy_step(learner, samples, chosen, **(settings | arguments))


def step(learner: Any, samples: Sequence[Sample], *arguments: Any, **settings: Any) -> dict[str, float]:
    return result_of(learner, samples, *arguments, **settings).metrics


def weights(learner: LocalLearner) -> list[torch.Tensor]:
    return [tensor.clone() for _, tensor in learner.export_weights()]


class Prefers:
    """A teacher that finds rewarded samples likelier than the student did."""

    def __init__(self, samples: Sequence[Sample], learner: LocalLearner) -> None:
        own = learner.logprobs(samples)
        self.columns = {
            s.token_ids.tobytes(): np.where(s.response_mask, c + 2 * (s.reward - 0.5), 0)
            for s, c in zip(samples, own, strict=True)
        }

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        return [self.columns[sample.token_ids.tobytes()] for sample in samples]


def critics_for(algorithm: Algorithm, make_critic: Make) -> list[Any]:
    if not algorithm.needs_critic:
        return []
    return [make_critic(seed=seed) for seed in range(2 if algorithm.critic.compares else 1)]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_raises_the_probability_of_what_was_rewarded(
    make_learner: Make, make_critic: Make, make_samples: Make, preset: str
) -> None:
    learner, samples = make_learner(learning_rate=5e-3), make_samples((1, 0, 1, 0, 0, 1, 0, 0.5))
    roles = Roles(
        critics=critics_for(PRESETS[preset], make_critic),
        teachers=[Teacher(Prefers(samples, learner))] if "teacher" in PRESETS[preset].needs else [],
    )
    # The engine is the learner itself; turns begin where nothing has been seen before.
    samples = [
        dataclasses.replace(
            sample,
            behavior_logprobs=column.astype(np.float32),
            turn_states=np.array([sample.group]),
            baseline=0.5,
        )
        for sample, column in zip(samples, learner.logprobs(samples), strict=True)
    ]

    def gap() -> float:
        scored = [
            float(c.sum()) / s.response_tokens
            for c, s in zip(learner.logprobs(samples), samples, strict=True)
        ]
        return float(np.dot(scored, [s.reward - 0.5 for s in samples]))

    before = gap()
    for seed in range(3):
        metrics = step(learner, samples, preset, rng=np.random.default_rng(seed), roles=roles)
    assert gap() > before
    assert metrics["actor/skipped_steps"] == 0


def test_metrics_have_the_names_and_values_that_people_look_for(
    make_learner: Make, make_samples: Make
) -> None:
    learner, samples = make_learner(), make_samples((1, 0, 0, 1, 0.5, 0.5, 0.5, 0.5))
    old = learner.logprobs(samples)
    metrics = step(learner, samples)
    assert metrics["critic/rewards/mean"] == 0.5
    assert (metrics["critic/rewards/min"], metrics["critic/rewards/max"]) == (0, 1)
    assert metrics["critic/advantages/max"] == pytest.approx(0.5 / (1 / 3**0.5 + 1e-6))
    assert metrics["frac_reward_zero_std"] == 0.5
    assert metrics["response_length/mean"] == np.mean([s.response_tokens for s in samples])
    assert metrics["response_length/clip_ratio"] == 0
    gaps = np.concatenate(
        [
            np.abs(
                np.exp(o[s.response_mask]) - np.exp(s.behavior_logprobs[s.response_mask].astype(np.float64))
            )
            for o, s in zip(old[:4], samples[:4], strict=True)
        ]
    )
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(gaps.mean(), rel=1e-6)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(gaps.max(), rel=1e-6)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(gaps.std(), rel=1e-6)
    computed = sum(s.response_tokens for s in samples[:4]) / sum(s.response_tokens for s in samples)
    assert metrics["actor/computed_share"] == pytest.approx(computed)
    assert {"actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/entropy"} <= metrics.keys()
    assert {"actor/grad_norm", "actor/lr", "actor/skipped_steps"} <= metrics.keys()


@pytest.mark.parametrize(
    ("mini_batches", "epochs", "scored", "with_old"),
    [
        (1, 1, [], [False]),
        (2, 1, [4], [False, True]),
        (4, 1, [6], [False, True, True, True]),
        (2, 2, [8], [True] * 4),
    ],
)
def test_old_logprobs_are_computed_once_and_only_where_no_forward_serves(
    make_samples: Make, mini_batches: int, epochs: int, scored: list[int], with_old: list[bool]
) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 1, 1, 0, 1, 0))
    step(learner, samples, mini_batches=mini_batches, epochs=epochs)
    assert learner.scored == scored
    assert ["old_logprobs" in update for update in learner.updates] == with_old
    for update in learner.updates:
        for column, sample in zip(update.get("old_logprobs", []), update["samples"], strict=False):
            assert column.shape == sample.token_ids.shape


def test_every_epoch_trains_each_sample_once(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 1, 1, 0, 1, 0))
    step(learner, samples, mini_batches=3, epochs=2)
    for epoch in (learner.updates[:3], learner.updates[3:]):
        assert sorted(i for update in epoch for i in update["indices"]) == list(range(8))


def test_samples_without_a_verdict_leave_statistics_and_loss(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, NAN, NAN, 1, NAN, 0, 0))
    metrics = step(learner, samples, "dr_grpo", mini_batches=1)
    [update] = learner.updates
    by_index = dict(zip(update["indices"], update["advantages"], strict=True))
    assert set(by_index) == {0, 1, 4, 6, 7}
    assert {
        i: column.max() if column.max() > 0 else column.min() for i, column in by_index.items()
    } == pytest.approx({0: 0.5, 1: -0.5, 4: 2 / 3, 6: -1 / 3, 7: -1 / 3})
    assert update["totals"].sequences == 5
    assert (metrics["training/samples"], metrics["training/left_out"]) == (5, 3)
    assert metrics["critic/rewards/mean"] == 0.4


def test_a_batch_without_a_verdict_changes_nothing(make_samples: Make) -> None:
    learner = RecordingLearner()
    metrics = step(learner, make_samples((NAN, NAN)))
    assert learner.updates == []
    assert metrics["training/left_out"] == 2


def test_truncated_samples_leave_only_if_the_algorithm_says_so(make_samples: Make) -> None:
    samples = make_samples((1, 0, 1, 0))
    samples[0] = dataclasses.replace(samples[0], truncated=True)
    kept, masked = RecordingLearner(), RecordingLearner()
    assert step(kept, samples)["response_length/clip_ratio"] == 0.25
    step(masked, samples, make_algorithm("dapo", mask_truncated=True))
    assert sorted(i for update in kept.updates for i in update["indices"]) == [0, 1, 2, 3]
    assert sorted(i for update in masked.updates for i in update["indices"]) == [1, 2, 3]


def test_groups_go_by_id(make_samples: Make) -> None:
    samples = [
        dataclasses.replace(sample, group=group)
        for sample, group in zip(make_samples((1, 5, 0, 5)), (8, 3, 8, 3), strict=True)
    ]
    learner = RecordingLearner()
    step(learner, samples, mini_batches=1)
    assert learner.updates[0]["indices"] in ([0, 2], [2, 0])


def test_zero_advantages_count_in_the_denominators_but_are_not_computed(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 1, 1, 1, 1, 1))
    step(learner, samples, mini_batches=1)
    [update] = learner.updates
    assert sorted(update["indices"]) == [0, 1, 2, 3]
    assert update["totals"] == Totals(tokens=sum(s.response_tokens for s in samples), sequences=8)


@pytest.mark.parametrize("policy_loss", ["clipped_surrogate", "gspo", "cispo"])
def test_leaving_zero_advantages_out_changes_no_weight(
    make_learner: Make, make_samples: Make, policy_loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make_samples((1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    algorithm = make_algorithm("grpo", policy_loss=policy_loss)
    results = []
    for inert in (True, False):
        monkeypatch.setattr(Algorithm, "zero_advantage_is_inert", property(lambda _, inert=inert: inert))
        learner = make_learner()
        metrics = step(learner, samples, algorithm, mini_batches=3)
        assert (metrics["actor/computed_share"] < 1) is inert
        results.append(weights(learner))
    for left_out, computed in zip(*results, strict=True):
        torch.testing.assert_close(left_out, computed, rtol=0, atol=1e-9)


def test_with_an_entropy_bonus_every_sample_is_computed(make_learner: Make, make_samples: Make) -> None:
    samples = make_samples((1, 1, 1, 1))
    metrics = step(make_learner(), samples, make_algorithm("dapo", entropy_coef=0.01))
    assert metrics["actor/computed_share"] == 1
    assert metrics["actor/grad_norm"] > 0


def test_the_step_does_not_depend_on_micro_batches(make_learner: Make, make_samples: Make) -> None:
    results = []
    for tokens in (4096, 17):
        learner = make_learner(micro_batch_tokens=tokens)
        step(learner, make_samples(), epochs=2)
        results.append(weights(learner))
    for wide, narrow in zip(*results, strict=True):
        torch.testing.assert_close(wide, narrow, rtol=0, atol=1e-8)


def test_kl_in_the_reward_is_charged_to_each_token(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 1, 0))

    class Reference:
        def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
            return [np.where(s.response_mask, -0.5, 0.0) for s in samples]

    algorithm = make_algorithm("reinforce", kl={"placement": "reward", "estimator": "k1", "coef": 0.5})
    step(learner, samples, algorithm, mini_batches=1, reference=Reference())
    [update] = learner.updates
    for i, advantages, old in zip(
        update["indices"], update["advantages"], update["old_logprobs"], strict=True
    ):
        mask = samples[i].response_mask
        kl = np.where(mask, old.astype(np.float64) + 0.5, 0)
        to_go = np.cumsum(kl[::-1])[::-1]
        np.testing.assert_allclose(advantages, np.where(mask, samples[i].reward - 0.5 * to_go, 0), atol=1e-6)


def test_kl_in_the_reward_lowers_the_score_that_groups_compare(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 1, 1, 1))

    class Reference:
        def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
            return [np.where(s.response_mask, -1.0, 0.0) for s in samples]

    algorithm = make_algorithm("dr_grpo", kl={"placement": "reward", "estimator": "k1", "coef": 0.1})
    step(learner, samples, algorithm, mini_batches=1, reference=Reference())
    [update] = learner.updates
    scores = [
        1 - 0.1 * (c.astype(np.float64)[samples[i].response_mask] + 1).sum()
        for i, c in zip(update["indices"], update["old_logprobs"], strict=True)
    ]
    got = [
        c[samples[i].response_mask][0] for i, c in zip(update["indices"], update["advantages"], strict=True)
    ]
    assert got == pytest.approx(np.array(scores) - np.mean(scores))


def test_kl_in_the_loss_pulls_towards_the_reference(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    samples = make_samples((1, 1, 1, 1))
    reference = LocalScorer(make_model(seed=1))
    learner = make_learner(learning_rate=3e-3)
    algorithm = make_algorithm("grpo", kl={"placement": "loss", "estimator": "k2", "coef": 1.0})
    metrics = [step(learner, samples, algorithm, reference=reference) for _ in range(15)]
    assert metrics[-1]["actor/kl_loss"] < 0.7 * metrics[0]["actor/kl_loss"]
    assert metrics[0]["actor/computed_share"] == 1


@pytest.mark.parametrize(("placement", "estimator"), [("loss", "k2"), ("reward", "k1")])
def test_the_distance_from_the_reference_is_a_token_mean_wherever_it_is_charged(
    make_learner: Make, make_samples: Make, placement: str, estimator: str
) -> None:
    learner, samples = make_learner(learning_rate=0.0), make_samples()

    class Nearby:
        def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
            own = learner.logprobs(samples)
            return [np.where(s.response_mask, c - 0.5, 0) for s, c in zip(samples, own, strict=True)]

    kl = {"placement": placement, "estimator": estimator, "coef": 0.1}
    metrics = step(learner, samples, make_algorithm("grpo", kl=kl), reference=Nearby())
    assert metrics["actor/ref_kl"] == pytest.approx({"k1": 0.5, "k2": 0.125}[estimator])


def test_ratios_spread_only_where_weights_moved_since_the_step_began(
    make_learner: Make, make_samples: Make
) -> None:
    samples = make_samples((1, 0, 0, 1, 1, 0, 1, 0))
    once = step(make_learner(), samples, mini_batches=1)
    assert (once["actor/ratio_mean"], once["actor/ratio_max"], once["actor/ratio_std"]) == (1, 1, 0)
    again = step(make_learner(learning_rate=0.05), samples, mini_batches=1, epochs=3)
    assert again["actor/ratio_max"] > 1.2
    assert again["actor/ratio_std"] > 0.1


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_tokens(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples()
    step(learner, samples, "reinforce_plus_plus_baseline", mini_batches=1)
    [update] = learner.updates
    flat = np.concatenate(
        [c[s.response_mask] for c, s in zip(update["advantages"], update["samples"], strict=True)]
    )
    assert flat.mean() == pytest.approx(0, abs=1e-9)
    assert flat.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_an_update_that_is_not_finite_is_counted_and_the_others_go_on(
    make_learner: Make, make_samples: Make, caplog: pytest.LogCaptureFixture
) -> None:
    learner, samples = make_learner(), make_samples((1, 0, 0, 1))

    class Poisoned:
        def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
            columns = [np.where(s.response_mask, -1.0, 0.0) for s in samples]
            columns[2][samples[2].response_mask] = np.nan
            return columns

    algorithm = make_algorithm("grpo", kl={"placement": "loss", "estimator": "k3", "coef": 0.1})
    result = result_of(learner, samples, algorithm, mini_batches=2, reference=Poisoned())
    [skipped] = result.skipped
    assert (skipped.what, skipped.samples) == ("loss", (2,))
    assert result.metrics["actor/skipped_steps"] == 1
    assert (learner.updates, result.updates) == (1, 1)
    assert "in samples [2]" in caplog.text
    assert np.isfinite(list(result.metrics.values())).all()
    assert all(tensor.isfinite().all() for tensor in weights(learner))


def test_missing_engine_logprobs_are_counted_and_do_no_harm(make_learner: Make, make_samples: Make) -> None:
    samples = make_samples((1, 0, 0, 1))
    assert samples[1].behavior_logprobs is not None
    samples[1].behavior_logprobs[-1] = np.nan
    metrics = step(make_learner(), samples)
    assert metrics["training/rollout_probs_missing"] == 1
    assert np.isfinite(list(metrics.values())).all()


def test_more_mini_batches_than_samples_makes_one_update_a_sample(make_samples: Make) -> None:
    learner = RecordingLearner()
    step(learner, make_samples((1, 0)), mini_batches=5)
    assert len(learner.updates) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mini_batches": 0}, "mini_batches 0, epochs 1"),
        ({"epochs": 0}, "mini_batches 2, epochs 0"),
        ({"algorithm": make_algorithm("grpo", kl={"placement": "loss", "coef": 1.0})}, "needs a reference"),
    ],
)
def test_a_wrong_argument_is_named(make_samples: Make, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        step(RecordingLearner(), make_samples(), **arguments)


@pytest.fixture
def registries() -> Iterator[None]:
    saved = [(registry, dict(registry._parts)) for registry in (POLICY_LOSSES, ADVANTAGES)]
    yield
    for registry, parts in saved:
        registry._parts = parts


@pytest.mark.usefixtures("registries")
def test_a_new_algorithm_is_a_function_and_a_name(make_learner: Make, make_samples: Make) -> None:
    @ADVANTAGES.register("above_bar")
    def above_bar(rewards: torch.Tensor, *, bar: float) -> torch.Tensor:
        return rewards - bar

    @POLICY_LOSSES.register("off_policy")
    def off_policy(
        logprobs: torch.Tensor, advantages: torch.Tensor, behavior_logprobs: torch.Tensor, *, cap: float
    ) -> PolicyLoss:
        weight = (logprobs.detach() - behavior_logprobs).exp().clamp(max=cap)
        return PolicyLoss(losses=-weight * advantages * logprobs, ratio=weight, clipped=weight == cap)

    algorithm = Algorithm(
        advantage="above_bar", policy_loss="off_policy", options={"cap": 2.0, "bar": 0.5}, name="mine"
    )
    samples, learner = make_samples((1, 0, 0.5, 1)), make_learner()
    metrics = step(learner, samples, algorithm)
    assert metrics["critic/advantages/max"] == 0.5
    assert metrics["actor/computed_share"] == 1
    with pytest.raises(LearnerError, match="'off_policy' needs behavior_logprobs, which this batch lacks"):
        step(make_learner(), make_samples(behavior=False), algorithm)
