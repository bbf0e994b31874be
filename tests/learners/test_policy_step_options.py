"""Options of a policy-gradient step: masks, clips, turns, corrections, teachers, experts, adaptive KL."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from roll_learners import (
    ADVANTAGES,
    POLICY_LOSSES,
    KlController,
    LearnerError,
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


class RecordingLearner:
    """Every log-prob is -1; keeps what it was asked."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.scored = 0

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self.scored += 1
        return [np.where(s.response_mask, -1.0, 0.0) for s in samples]

    def update(self, samples: Sequence[Sample], objective: Any, **columns: Any) -> UpdateResult:
        self.updates.append({"samples": list(samples), **columns})
        tokens = float(sum(s.response_tokens for s in samples))
        return UpdateResult(metrics={"skipped_steps": 0.0, "tokens": tokens, "lr": 0.1})

    @property
    def advantages(self) -> dict[int, np.ndarray]:
        (update,) = self.updates
        pairs = zip(update["indices"], update["samples"], update["advantages"], strict=True)
        return {i: column[sample.response_mask] for i, sample, column in pairs}


class Fixed:
    def __init__(self, logprob: float) -> None:
        self.logprob, self.scored = logprob, 0

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self.scored += len(samples)
        return [np.where(s.response_mask, self.logprob, 0.0) for s in samples]


def run(learner: Any, samples: Sequence[Sample], algorithm: Any, **settings: Any) -> StepResult:
    given: dict[str, Any] = {"mini_batches": 1, "epochs": 1, "rng": np.random.default_rng(0)}
    return policy_step(learner, samples, algorithm, **(given | settings))


def two_turns(reward: float, group: int = 0, **fields: Any) -> Sample:
    """Prompt, two tokens, an answer of the environment, one token."""
    return Sample(
        token_ids=np.array([1, 2, 3, 9, 4], np.int32),
        response_mask=np.array([0, 1, 1, 0, 1], np.bool_),
        behavior_logprobs=np.array([0, -1, -1, 0, -1], np.float32),
        reward=reward,
        group=group,
        **fields,
    )


def test_groups_that_are_too_easy_or_too_hard_leave_the_loss(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 1, 1, 0, 0, 0, 1, 0), group_size=4)
    run(learner, samples, make_algorithm("grpo", min_group_reward=0.3, max_group_reward=0.8))
    assert set(learner.advantages) == {0, 1, 2, 3}
    assert learner.updates[0]["totals"].sequences == 4
    nothing = RecordingLearner()
    result = run(nothing, samples, make_algorithm("grpo", min_group_reward=0.9))
    assert (nothing.updates, result.updates) == ([], 0)


def test_long_errors_leave_the_loss_but_not_the_statistics(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((1, 0, 0, 0))
    longest = max(s.response_tokens for s in samples[1:])
    kept = [0] + [i for i in (1, 2, 3) if samples[i].response_tokens < longest]
    run(learner, samples, make_algorithm("dr_grpo", max_error_tokens=longest - 1))
    assert sorted(learner.advantages) == kept
    assert learner.advantages[0][0] == pytest.approx(0.75)


def test_rewards_and_advantages_are_clipped(make_samples: Make) -> None:
    learner, samples = RecordingLearner(), make_samples((5, 0, 0, 0))
    run(learner, samples, make_algorithm("dr_grpo", reward_clip=1.0, advantage_clip=0.5))
    assert learner.advantages[0][0] == 0.5
    assert learner.advantages[1][0] == pytest.approx(-0.25)


def test_turn_rewards_are_placed_at_the_end_of_their_turns() -> None:
    samples = [two_turns(1.0, turn_rewards=np.array([0.25, 0.75], np.float32)), two_turns(0.5)]
    learner = RecordingLearner()
    run(learner, samples, make_algorithm("reinforce", gamma=0.5))
    np.testing.assert_allclose(learner.advantages[0], [0.3125, 0.625, 0.75])
    np.testing.assert_allclose(learner.advantages[1], [0.125, 0.25, 0.5])
    learner = RecordingLearner()
    run(learner, samples, make_algorithm("turn_reinforce", gamma=0.5, whiten=False))
    np.testing.assert_allclose(learner.advantages[0], [0.625, 0.625, 0.75])


def test_turn_states_are_needed_by_who_compares_them() -> None:
    states = [two_turns(r, turn_states=np.array([7, s])) for r, s in ((1.0, 8), (0.0, 9))]
    learner = RecordingLearner()
    run(learner, states, make_algorithm("gigpo", gamma=1.0, options={"by_deviation": 0.0}))
    # Episode +-1/2; the first turns start from one state and differ by as much, the second are alone.
    np.testing.assert_allclose(learner.advantages[0], [1.0, 1.0, 0.5])
    with pytest.raises(LearnerError, match="1 of 2 samples have no turn_states"):
        run(RecordingLearner(), [states[0], two_turns(1.0)], make_algorithm("gigpo"))


def test_shared_beginnings_are_credited_once() -> None:
    other = two_turns(0.0)
    ids = other.token_ids.copy()
    ids[4] = 5
    learner = RecordingLearner()
    samples = [two_turns(1.0), dataclasses.replace(other, token_ids=ids)]
    run(learner, samples, make_algorithm("arpo_hard", advantage_eps=0.0))
    np.testing.assert_allclose(learner.advantages[0], [0, 0, 0.5**0.5], atol=1e-12)


def test_the_loss_gets_turns_and_experts_where_it_asks(make_learner: Make) -> None:
    samples = [two_turns(1.0), two_turns(-1.0), two_turns(1.0, expert=True)]
    recording = RecordingLearner()
    run(recording, samples, make_algorithm("ipa"))
    (update,) = recording.updates
    assert [column.tolist() for column in update["turn_starts"]] == [[0, 1, 0, 0, 1]] * 3
    assert {i: e for i, e in zip(update["indices"], update["expert"], strict=True)} == {0: 0, 1: 0, 2: 1}
    # By hand: without imitation the expert's tokens have no gradient.
    norms = []
    for coef in (0.0, 1.0):
        options = {"mismatch_high": 1e9, "imitation_coef": coef, "rl_coef": 0.0}
        metrics = run(make_learner(), samples, make_algorithm("ipa", options=options)).metrics
        norms.append(metrics["actor/grad_norm"])
    assert norms[0] == 0 < norms[1]


def test_teachers_penalise_by_tag_before_advantages_are_whitened(make_samples: Make) -> None:
    samples = [
        dataclasses.replace(s, tag=tag) for s, tag in zip(make_samples((1, 0, 0, 0)), "abab", strict=True)
    ]
    first, second = Fixed(-2.0), Fixed(-0.5)
    teachers = [Teacher(first, 0.5, "k1", frozenset("a")), Teacher(second, 0.1)]
    learner = RecordingLearner()
    run(learner, samples, make_algorithm("dr_grpo"), roles=Roles(teachers=teachers))
    base = {0: 0.75, 1: -0.25, 2: -0.25, 3: -0.25}
    for i, own in base.items():
        # The student is at -1: k1 to the first is 1, to the second -0.5.
        expected = own - (0.5 if i % 2 == 0 else 0) + 0.05
        np.testing.assert_allclose(learner.advantages[i], expected)
    assert (first.scored, second.scored, learner.scored) == (2, 4, 1)


def test_the_weight_of_kl_in_the_reward_adapts(make_samples: Make) -> None:
    kl = {"placement": "reward", "estimator": "k1", "coef": 0.1, "target": 0.25}
    algorithm, samples = make_algorithm("reinforce", kl=kl), make_samples((1, 0, 0, 1))
    controller = KlController(0.1, target=0.25, horizon=40)
    learner = RecordingLearner()
    roles = Roles(kl=controller)
    metrics = run(learner, samples, algorithm, reference=Fixed(-1.5), roles=roles).metrics
    assert metrics["actor/ref_kl"] == 0.5
    assert metrics["critic/kl_coef"] == 0.1
    assert controller.coef == pytest.approx(0.1 * (1 + 0.2 * 4 / 40))
    last = learner.advantages[1][-1]
    assert last == pytest.approx(-0.1 * 0.5)
    run(learner, samples, algorithm, reference=Fixed(-1.5), roles=roles)
    with pytest.raises(LearnerError, match=r"has kl\.target: policy_step needs roles\.kl"):
        run(learner, samples, algorithm, reference=Fixed(-1.5))


def test_surviving_tokens_alone_are_counted(make_samples: Make, make_learner: Make) -> None:
    samples = make_samples((1, 0, 0, 1))
    for sample in samples:
        assert sample.behavior_logprobs is not None
        sample.behavior_logprobs[sample.response_mask] = -1.0
    samples[0].behavior_logprobs[-1] = -9.0
    samples[1].behavior_logprobs[samples[1].response_mask] = -9.0
    rule = {"reject": "token", "low": 0.5, "high": 2.0, "denominator": "surviving"}
    learner = RecordingLearner()
    run(learner, samples, make_algorithm("grpo", correction=rule))
    rejected = 1 + samples[1].response_tokens
    left = sum(s.response_tokens for s in samples) - rejected
    sequences = 3 if samples[0].response_tokens > 1 else 2
    assert learner.updates[0]["totals"] == Totals(tokens=left, sequences=sequences)
    assert learner.scored == 1
    real = make_learner(micro_batch_tokens=17)
    metrics = run(real, samples, make_algorithm("grpo", correction=rule)).metrics
    assert 0 < metrics["training/correction_rejected"] <= 1
    with pytest.raises(LearnerError, match="needs behavior_logprobs"):
        run(RecordingLearner(), make_samples(behavior=False), make_algorithm("grpo", correction=rule))


OPTIONS = {
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "kimi": {"tau": 0.3},
    "ipa_chunk": {"mismatch_high": 2.0},
    "ipa_trajectory": {"mismatch_high": 2.0},
}


@pytest.mark.parametrize("policy_loss", POLICY_LOSSES.names())
def test_no_loss_depends_on_how_the_batch_is_split_padded_or_ordered(
    make_learner: Make, make_samples: Make, policy_loss: str
) -> None:
    samples = [*make_samples(), two_turns(1.0, group=9), two_turns(0.0, group=9)]
    algorithm = make_algorithm(
        "grpo",
        policy_loss=policy_loss,
        options=OPTIONS.get(policy_loss, {}),
        correction={"weight": "turn", "cap": 1.5, "reject": "geometric", "low": 0.1},
        entropy_coef=0.01,
    )
    seen = []
    for tokens, order in ((4096, 1), (17, 1), (60, -1)):
        learner = make_learner(micro_batch_tokens=tokens)
        metrics = run(learner, samples[::order], algorithm).metrics
        seen.append([metrics[f"actor/{name}"] for name in ("loss", "pg_loss", "grad_norm")])
    for other in seen[1:]:
        assert other == pytest.approx(seen[0], rel=1e-5, abs=1e-8)
    assert seen[0][2] > 0


def test_a_rejected_sequence_has_no_gradient(make_learner: Make, make_samples: Make) -> None:
    samples = make_samples((1, 0), group_size=2)
    for sample in samples:
        assert sample.behavior_logprobs is not None
        sample.behavior_logprobs[sample.response_mask] = -200.0
    algorithm = make_algorithm("geometric_rejection")
    metrics = run(make_learner(), samples, algorithm).metrics
    assert metrics["training/correction_rejected"] == 1
    assert metrics["actor/grad_norm"] == 0


@pytest.mark.parametrize("advantage", sorted(set(ADVANTAGES.names()) - {"gae"}))
def test_advantages_go_with_their_sample_wherever_it_stands(advantage: str) -> None:
    rng = np.random.default_rng(1)
    samples = [
        two_turns(
            float(rng.integers(0, 3)),
            group=int(rng.integers(0, 3)),
            turn_states=rng.integers(0, 2, 2),
            baseline=float(rng.integers(0, 2)),
        )
        for _ in range(12)
    ]
    order = rng.permutation(len(samples))
    algorithm = make_algorithm("grpo", advantage=advantage, entropy_coef=0.1)
    straight, mixed = RecordingLearner(), RecordingLearner()
    run(straight, samples, algorithm)
    run(mixed, [samples[i] for i in order], algorithm)
    assert len(straight.advantages) == len(samples)
    for place, i in enumerate(order):
        np.testing.assert_allclose(mixed.advantages[place], straight.advantages[i], atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"turn_rewards": np.array([1.0], np.float32)},
            r"turn_rewards is float32\[1\], allowed is float32\[2\]",
        ),
        ({"turn_rewards": np.array([1.0, 1.0], np.float32)}, "turn_rewards sum to 2.0, but reward is 1.0"),
        ({"turn_states": np.array([1.0, 2.0])}, r"turn_states is float64\[2\], allowed is int64\[2\]"),
    ],
)
def test_turns_that_do_not_fit_the_mask_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        two_turns(1.0, **fields)
