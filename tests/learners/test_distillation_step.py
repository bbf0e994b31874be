"""Distillation steps: full and top-k teachers, mixing, several teachers; and KL over the vocabulary."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import (
    Distillation,
    DistillationTeacher,
    LearnerError,
    LocalScorer,
    Sample,
    distillation_step,
    forward_kl,
    full_kl,
    make_algorithm,
    policy_step,
)

Make = Callable[..., Any]


def logits_of(model: Any, sample: Sample) -> torch.Tensor:
    """[N, V] at the trained tokens, by the model's own forward."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    return model(input_ids=ids).logits[0, :-1][torch.from_numpy(sample.response_mask[1:])]


def distributions(model: Any, samples: list[Sample], temperature: float = 1.0) -> torch.Tensor:
    return torch.cat([logits_of(model, s) / temperature for s in samples]).log_softmax(-1)


@pytest.mark.parametrize("top_k", [None, 25, 3])
def test_value_and_gradient_are_those_of_the_divergence(
    make_learner: Make, make_model: Make, make_samples: Make, top_k: int | None
) -> None:
    samples, teacher = make_samples(), make_model(seed=1)
    learner = make_learner(micro_batch_tokens=17, max_grad_norm=None)
    rule = Distillation(temperature=2.0, weight=0.75, top_k=top_k)
    student, target = (
        distributions(learner.model, samples, 2.0),
        distributions(teacher, samples, 2.0).detach(),
    )
    if top_k is not None:
        chosen = target.topk(top_k).indices
        student, target = (rows.gather(-1, chosen).log_softmax(-1) for rows in (student, target))
    ids = torch.from_numpy(np.concatenate([s.token_ids[s.response_mask] for s in samples]).astype(np.int64))
    nll = -distributions(learner.model, samples).gather(-1, ids[:, None]).mean()
    kd = forward_kl(student, target).mean()
    (0.25 * nll + 0.75 * kd).backward()
    expected = [p.grad.clone() for p in learner.model.parameters()]
    learner.model.zero_grad()
    result = distillation_step(learner, samples, rule, [DistillationTeacher(LocalScorer(teacher))])
    assert result.metrics["actor/kd_loss"] == pytest.approx(kd.item())
    assert result.metrics["actor/nll"] == pytest.approx(nll.item())
    for parameter, wanted in zip(learner.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divergence", ["reverse_kl", "generalised_js", "adaptive_kl"])
def test_a_student_comes_to_its_teacher(
    make_learner: Make, make_model: Make, make_samples: Make, divergence: str
) -> None:
    samples, teacher = make_samples(), DistillationTeacher(LocalScorer(make_model(seed=1)))
    learner = make_learner(learning_rate=1e-2)
    rule = Distillation(divergence=divergence, weight=1.0)
    losses = [
        distillation_step(learner, samples, rule, [teacher]).metrics["actor/kd_loss"] for _ in range(20)
    ]
    assert losses[-1] < 0.6 * losses[0]


def test_teachers_are_weighed_and_chosen_by_tag(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    samples = make_samples((1, 1, 1, 1))
    for i, sample in enumerate(samples):
        object.__setattr__(sample, "tag", "math" if i < 2 else "code")
    first, second = make_model(seed=1), make_model(seed=2)
    learner = make_learner()
    teachers = [
        DistillationTeacher(LocalScorer(first), 1.0, frozenset({"math"})),
        DistillationTeacher(LocalScorer(second), 0.5),
    ]
    own = distributions(learner.model, samples).detach()
    counts = [s.response_tokens for s in samples]
    math = torch.arange(4).repeat_interleave(torch.tensor(counts)) < 2
    values = 0.5 * forward_kl(own, distributions(second, samples))
    values = values + math * forward_kl(own, distributions(first, samples))
    metrics = distillation_step(learner, samples, Distillation(weight=1.0), teachers).metrics
    assert metrics["actor/kd_loss"] == pytest.approx(values.mean().item())


def test_what_cannot_be_compared_is_named(make_learner: Make, make_model: Make, make_samples: Make) -> None:
    samples, teacher = make_samples(), DistillationTeacher(LocalScorer(make_model(seed=1)))
    with pytest.raises(LearnerError, match="at least one teacher"):
        distillation_step(make_learner(), samples, Distillation(), [])
    empty = Sample(token_ids=np.ones(2, np.int32), response_mask=np.zeros(2, np.bool_))
    with pytest.raises(LearnerError, match="none of 1 samples has a trained token"):
        distillation_step(make_learner(), [empty], Distillation(), [teacher])
    with pytest.raises(LearnerError, match="k is 26: allowed is 1 to 25"):
        distillation_step(make_learner(), samples, Distillation(top_k=26), [teacher])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"divergence": "kl"}, "unknown divergence 'kl'"),
        ({"divergence": "forward_kl", "options": {"beta": 0.5}}, "unknown option of divergence 'forward_kl'"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"weight": 1.5}, "weight is 1.5"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_mass": "half"}, "unknown distillation.top_mass 'half'"),
    ],
)
def test_a_wrong_distillation_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        Distillation(**fields)


def test_a_kl_over_the_vocabulary_in_the_policy_loss(
    make_learner: Make, make_model: Make, make_samples: Make
) -> None:
    samples, reference = make_samples((1, 1, 1, 1)), make_model(seed=1)
    learner = make_learner(temperature=0.7)
    expected = full_kl(
        torch.cat([logits_of(learner.model, s) for s in samples]) / 0.7,
        torch.cat([logits_of(reference, s) for s in samples]) / 0.7,
    )
    kl = {"placement": "loss", "estimator": "full", "coef": 1.0}
    algorithm = make_algorithm("dapo", kl=kl)
    settings: dict[str, Any] = {"mini_batches": 1, "epochs": 1, "rng": np.random.default_rng(0)}
    scorer = LocalScorer(reference, temperature=0.7)
    metrics = policy_step(learner, samples, algorithm, reference=scorer, **settings).metrics
    assert metrics["actor/ref_kl"] == pytest.approx(expected.mean().item())
    for _ in range(10):
        after = policy_step(learner, samples, algorithm, reference=scorer, **settings).metrics
    assert after["actor/ref_kl"] < 0.8 * metrics["actor/ref_kl"]
    with pytest.raises(LearnerError, match="needs a reference that gives its distribution"):
        policy_step(learner, samples, algorithm, reference=make_learner(), **settings)
