"""Tests that any implementation of `Learner` must pass; run it on your own back-end.

They hold for every objective of this package: the update does not depend on micro-batches, order,
padding or masked content, and an update that is not finite changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roll_learners.algorithm import make_algorithm
from roll_learners.learner import Learner
from roll_learners.policy_objective import PolicyObjective
from roll_learners.sample import Sample

MakeLearner = Callable[[int], Learner]
"""Makes a learner with this micro_batch_tokens; the same weights and settings at each call."""

WIDE, NARROW = 4096, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One property: its name, whether it holds, and what was seen."""

    name: str
    passed: bool
    detail: str


def check_learner(
    make_learner: MakeLearner, *, vocab_size: int, tolerance: float = 1e-4
) -> list[CheckResult]:
    """All properties, in order; every result has passed for a conforming learner.

    Args:
        make_learner: See `MakeLearner`; called about ten times.
        vocab_size: Token ids are drawn below it; at least 4.
        tolerance: Largest relative difference of gradient norms, and absolute difference of log-probs
            after an update, that counts as equal: 1e-9 suits float64. 1e-4 suits float32 with an AdamW
            eps of 1e-3; with a smaller one its first step takes rounding errors for gradients.
    """
    samples, advantages = drawn_batch(vocab_size)
    expected = _after_update(make_learner(WIDE), samples, advantages)
    reverse = slice(None, None, -1)
    masked_samples, masked_advantages = _other_masked_content(samples, advantages)
    variants = {
        "micro-batch split": _after_update(make_learner(NARROW), samples, advantages),
        "sample order": _after_update(make_learner(WIDE), samples[reverse], advantages[reverse]).reversed(),
        "masked content": _after_update(make_learner(WIDE), masked_samples, masked_advantages),
        "untrained tail": _after_update(make_learner(WIDE), *_with_tail(samples, advantages, vocab_size)),
    }
    return [
        _only_trained_tokens_have_logprobs(make_learner(WIDE), samples),
        *(
            _same(f"update is independent of {name}", expected, got, tolerance)
            for name, got in variants.items()
        ),
        _not_finite_changes_nothing(make_learner(WIDE), samples, advantages),
    ]


@dataclass(frozen=True, slots=True)
class _Outcome:
    grad_norm: float
    logprobs: list[npt.NDArray[np.floating]]  # [R] each, of the trained tokens

    def reversed(self) -> _Outcome:
        return _Outcome(self.grad_norm, self.logprobs[::-1])


def drawn_batch(vocab_size: int) -> tuple[list[Sample], list[npt.NDArray[np.floating]]]:
    """Six samples of different shapes, and advantages [N] of each."""
    rng = np.random.default_rng(0)
    samples = []
    for prompt, response in ((3, 4), (1, 9), (7, 2), (2, 1), (5, 12), (4, 4)):
        samples.append(
            Sample.from_completion(
                rng.integers(0, vocab_size, prompt).astype(np.int32),
                rng.integers(0, vocab_size, response).astype(np.int32),
                rng.uniform(-3, -0.1, response).astype(np.float32),
            )
        )
    return samples, [rng.normal(size=len(sample.token_ids)) for sample in samples]


def _other_masked_content(
    samples: Sequence[Sample], advantages: Sequence[npt.NDArray[np.floating]]
) -> tuple[list[Sample], list[npt.NDArray[np.floating]]]:
    nowhere = np.float32(np.nan)
    changed = [
        dataclasses.replace(sample, behavior_logprobs=np.where(sample.response_mask, sampled, nowhere))
        for sample in samples
        if (sampled := sample.behavior_logprobs) is not None
    ]
    columns = [
        np.where(sample.response_mask, column, np.inf)
        for sample, column in zip(samples, advantages, strict=True)
    ]
    return changed, columns


def _with_tail(
    samples: Sequence[Sample], advantages: Sequence[npt.NDArray[np.floating]], vocab_size: int
) -> tuple[list[Sample], list[npt.NDArray[np.floating]]]:
    tail = np.arange(5, dtype=np.int32) % vocab_size
    longer = [
        Sample(
            token_ids=np.concatenate([sample.token_ids, tail]),
            response_mask=np.concatenate([sample.response_mask, np.zeros(len(tail), np.bool_)]),
        )
        for sample in samples
    ]
    return longer, [np.concatenate([column, np.ones(len(tail))]) for column in advantages]


def _after_update(
    learner: Learner, samples: Sequence[Sample], advantages: Sequence[npt.NDArray[np.floating]]
) -> _Outcome:
    result = learner.update(samples, PolicyObjective(make_algorithm("dapo")), advantages=advantages)
    scored = learner.logprobs(samples)
    trained = [column[sample.response_mask] for column, sample in zip(scored, samples, strict=True)]
    return _Outcome(result.metrics["grad_norm"], trained)


def _same(name: str, expected: _Outcome, got: _Outcome, tolerance: float) -> CheckResult:
    norm = abs(got.grad_norm / expected.grad_norm - 1)
    pairs = zip(expected.logprobs, got.logprobs, strict=True)
    logprob = max(float(np.abs(a - b).max()) for a, b in pairs)
    passed = norm <= tolerance and logprob <= tolerance
    return CheckResult(
        name=name,
        passed=passed,
        detail=f"gradient norm differs by {norm:.3g}, log-probs after by {logprob:.3g}",
    )


def _only_trained_tokens_have_logprobs(learner: Learner, samples: Sequence[Sample]) -> CheckResult:
    wrong = [
        i
        for i, (column, sample) in enumerate(zip(learner.logprobs(samples), samples, strict=True))
        if column.shape != sample.token_ids.shape
        or column[~sample.response_mask].any()
        or not (column[sample.response_mask] < 0).all()
    ]
    return CheckResult(
        name="log-probs are negative where trained and 0 elsewhere",
        passed=not wrong,
        detail=f"samples {wrong}",
    )


def _not_finite_changes_nothing(
    learner: Learner, samples: Sequence[Sample], advantages: Sequence[npt.NDArray[np.floating]]
) -> CheckResult:
    before = learner.logprobs(samples)
    poisoned = [*advantages[:-1], np.full_like(advantages[-1], np.nan)]
    names = [100 + i for i in range(len(samples))]
    result = learner.update(
        samples, PolicyObjective(make_algorithm("dapo")), indices=names, advantages=poisoned
    )
    named = () if result.skipped is None else result.skipped.samples
    pairs = zip(before, learner.logprobs(samples), strict=True)
    unchanged = all(np.array_equal(a, b) for a, b in pairs)
    return CheckResult(
        name="an update that is not finite changes nothing, is counted and names its sample",
        passed=unchanged and result.metrics["skipped_steps"] == 1 and named == (names[-1],),
        detail=f"skipped_steps {result.metrics['skipped_steps']}, log-probs "
        f"{'equal' if unchanged else 'changed'}, named {named}, to be named {names[-1]}",
    )
