"""Steps on preferences: their gradient is that of the whole loss, and they learn what is preferred."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    PREFERENCE_LOSSES,
    PREFERENCES,
    Kto,
    LearnerError,
    LocalScorer,
    Pair,
    Preference,
    Sample,
    bradley_terry,
    kto_step,
    preference_logits,
    preference_step,
    reward_model_step,
)

Make = Callable[..., Any]


def pairs_of(samples: Sequence[Sample]) -> list[Pair]:
    return [Pair(chosen, rejected) for chosen, rejected in zip(samples[::2], samples[1::2], strict=True)]


def sums(model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """With gradient, by the model's own forward."""
    rows = []
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        rows.append(chosen[torch.from_numpy(sample.response_mask[1:])].sum())
    return torch.stack(rows)


@pytest.mark.parametrize("name", sorted(PREFERENCES))
def test_value_and_gradient_are_those_of_the_loss_of_all_pairs(
    make_learner: Make, make_model: Make, make_samples: Make, name: str
) -> None:
    samples, preference = make_samples(), PREFERENCES[name]
    pairs, reference = pairs_of(samples), make_model(seed=1)
    learner = make_learner(micro_batch_tokens=17, max_grad_norm=None)  # a sample or two at a time
    model = learner.model
    ordered = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    lengths = torch.tensor([sample.response_tokens for sample in ordered])
    scale = lengths if preference.average else torch.ones_like(lengths)
    policy = (sums(model, ordered) / scale).chunk(2)
    with torch.no_grad():
        ref = (sums(reference, ordered) / scale * preference.needs_reference).chunk(2)
    losses = PREFERENCE_LOSSES.bind(preference.loss, preference.options)(
        logits=preference_logits(*policy, *ref), chosen=policy[0], rejected=policy[1]
    )
    loss = losses.mean()
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    result = preference_step(learner, pairs, preference, reference=LocalScorer(reference))
    assert result.metrics["actor/sequence_loss"] == pytest.approx(loss.item(), rel=1e-9)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6)
    margin = (policy[0] - policy[1]) - (ref[0] - ref[1])
    assert result.metrics["rewards/margins"] == pytest.approx(margin.mean().item())
    assert result.metrics["rewards/accuracies"] == (margin > 0).double().mean().item()


def test_preferences_are_learned(make_learner: Make, make_model: Make, make_samples: Make) -> None:
    pairs, reference = pairs_of(make_samples()), LocalScorer(make_model())
    learner = make_learner(learning_rate=5e-3)
    steps = [preference_step(learner, pairs, PREFERENCES["dpo"], reference=reference) for _ in range(10)]
    assert steps[0].metrics["actor/sequence_loss"] == pytest.approx(np.log(2))
    assert steps[-1].metrics["rewards/accuracies"] == 1
    assert steps[-1].metrics["actor/sequence_loss"] < 0.8 * np.log(2)
    assert steps[-1].updates == 1


def test_a_likelihood_term_is_the_mean_over_pairs_of_the_chosen_token_means(
    make_learner: Make, make_samples: Make
) -> None:
    pairs = pairs_of(make_samples())
    plain, more = (
        preference_step(
            make_learner(),
            pairs,
            Preference(loss="simpo", nll_coef=coef, options={"beta": 1.0, "gamma": 0.0}),
        ).metrics["actor/sequence_loss"]
        for coef in (0.0, 0.5)
    )
    columns = make_learner().logprobs([pair.chosen for pair in pairs])
    nll = np.mean([-c.sum() / p.chosen.response_tokens for c, p in zip(columns, pairs, strict=True)])
    assert more - plain == pytest.approx(0.5 * nll)


def test_kto_moves_desirable_responses_up_and_others_down(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    samples, reference = make_samples(), LocalScorer(make_model())
    learner = make_learner(learning_rate=5e-3)
    first, *_, last = (kto_step(learner, samples, Kto(), reference=reference) for _ in range(10))
    assert first.metrics["kto/baseline"] == 0
    assert first.metrics["actor/sequence_loss"] == pytest.approx(0.5)
    assert last.metrics["rewards/desirable"] > 0 > last.metrics["rewards/undesirable"]
    assert last.metrics["actor/sequence_loss"] < 0.5


def test_a_reward_model_ranks_what_it_was_shown(make_critic: Make, make_samples: Make) -> None:
    pairs = pairs_of(make_samples())
    critic = make_critic(micro_batch_tokens=17, learning_rate=1e-2, max_grad_norm=None)
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    ids = [torch.from_numpy(s.token_ids.astype(np.int64))[None] for s in samples]
    scores = torch.stack([critic.model(input_ids=each).logits[0, -1, 0] for each in ids])
    loss = bradley_terry(*scores.chunk(2)).mean()
    loss.backward()
    wanted = critic.model.score.weight.grad.clone()
    critic.model.zero_grad()
    first = reward_model_step(critic, pairs)
    assert first.metrics["critic/sequence_loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(critic.model.score.weight.grad, wanted)
    for _ in range(30):
        last = reward_model_step(critic, pairs)
    assert last.metrics["rewards/accuracies"] == 1
    chosen, rejected = critic.scores(samples)[:4], critic.scores(samples)[4:]
    assert (chosen > rejected).all()


def test_what_is_missing_is_named(make_learner: Make, make_critic: Make, make_samples: Make) -> None:
    pairs = pairs_of(make_samples())
    with pytest.raises(LearnerError, match="'dpo' compares with a reference"):
        preference_step(make_learner(), pairs, PREFERENCES["dpo"])
    empty = Sample(token_ids=np.ones(2, np.int32), response_mask=np.zeros(2, np.bool_))
    for failing in ([], [Pair(pairs[0].chosen, empty)]):
        with pytest.raises(LearnerError, match=r"responses, of which \[1?\] have no trained token"):
            preference_step(make_learner(), failing, PREFERENCES["simpo"])
    with pytest.raises(LearnerError, match="at least 2 are needed for the baseline"):
        kto_step(make_learner(), [pairs[0].chosen], Kto(), reference=make_learner())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "dpoo"}, "unknown preference loss 'dpoo': did you mean 'dpo'"),
        ({"loss": "dpo"}, "'dpo' lacks beta"),
        ({"options": {"beta": 0.1, "gama": 1}}, "unknown option of preference loss 'dpo' 'gama'"),
        ({"options": {"beta": 0.1, "label_smoothing": 0.6}}, "label_smoothing is 0.6: allowed is 0 to 0.5"),
        ({"loss": "robust_dpo", "options": {"beta": 0.1, "label_smoothing": 0.5}}, "below 0.5 for"),
        ({"nll_coef": -1.0, "options": {"beta": 0.1}}, "nll_coef is -1.0"),
    ],
)
def test_a_wrong_preference_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        Preference(**fields)
    with pytest.raises(LearnerError, match="allowed are beta above 0"):
        Kto(beta=0.0)
