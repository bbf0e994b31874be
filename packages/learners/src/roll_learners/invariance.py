"""The property that a gradient depends on its samples alone, as a check of any way to run a model.

`roll_learners.conformance.check_learner` asks the same of a whole learner, from outside; this one compares
gradients, so that it also sees data-parallel shares and packed rows. Run it on a `Runner` of your own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.algorithm import Algorithm, make_algorithm
from roll_learners.balance import partition
from roll_learners.batch import Column, total_counts
from roll_learners.conformance import NARROW, WIDE, CheckResult, drawn_batch
from roll_learners.gradient import Runner, accumulate_gradient
from roll_learners.objective import Objective
from roll_learners.policy_objective import PolicyObjective
from roll_learners.sample import Sample

RANKS = 3


class RunnerCase(NamedTuple):
    """A way to run the model.

    Attributes:
        runner: With fresh weights, the same at each call.
        parameters: Those that get a gradient, in the same order at each call.
    """

    runner: Runner[Objective]
    parameters: Sequence[torch.nn.Parameter]


MakeCase: TypeAlias = Callable[[int], RunnerCase]
"""Makes a case with this micro_batch_tokens; the same weights at each call."""


def check_gradient(
    make_case: MakeCase,
    *,
    vocab_size: int,
    forms: Mapping[str, MakeCase] | None = None,
    algorithm: Algorithm | None = None,
    tolerance: float = 1e-9,
) -> list[CheckResult]:
    """Whether each way to compute a gradient gives the same one.

    Compared with one pass over all samples are: a split into micro-batches, accumulation over several calls,
    data-parallel ranks whose gradients are averaged, another order of samples, other content of masked
    positions (NaN and infinities), and each of `forms` (packed rows, shared prompts, another back-end).

    Args:
        make_case: What the others are compared with.
        vocab_size: Token ids are drawn below it; at least 4.
        forms: Other ways to run the same weights, by name.
        algorithm: Of the loss; None is `dapo` with a KL term and an entropy bonus.
        tolerance: Largest difference of a gradient that counts as equal, as a share of its largest entry:
            1e-9 suits float64, 1e-4 float32.
    """
    batch = _Batch.drawn(vocab_size, algorithm)
    expected = batch.gradient(make_case(WIDE))
    ranks = partition(np.array([len(s.token_ids) for s in batch.samples]), RANKS)
    halves = [list(range(3)), list(range(3, len(batch.samples)))]
    variants = {
        "micro-batch split": batch.gradient(make_case(NARROW)),
        "accumulation": batch.summed(make_case(WIDE), halves),
        "data-parallel size": batch.averaged(make_case, [each.tolist() for each in ranks]),
        "sample order": batch.chosen(range(len(batch.samples))[::-1]).gradient(make_case(NARROW)),
        "masked content": batch.with_junk().gradient(make_case(WIDE)),
    }
    for name, make in (forms or {}).items():
        variants[name] = batch.gradient(make(WIDE))
        variants[f"{name}, split"] = batch.gradient(make(NARROW))
    return [_compared(name, expected, got, tolerance) for name, got in variants.items()]


class _Batch(NamedTuple):
    samples: list[Sample]
    columns: dict[str, Column]
    algorithm: Algorithm

    @staticmethod
    def drawn(vocab_size: int, algorithm: Algorithm | None) -> _Batch:
        samples, advantages = drawn_batch(vocab_size)
        # Two completions of one prompt, so that forms which share prompts have something to share.
        first = samples[0]
        other = (first.token_ids + _last(first)) % np.int32(vocab_size)
        samples.append(dataclasses.replace(first, token_ids=other.astype(np.int32)))
        rng = np.random.default_rng(1)
        advantages.append(rng.normal(size=len(samples[-1].token_ids)))
        columns: dict[str, Column] = {"advantages": advantages}
        for name in ("old_logprobs", "ref_logprobs"):
            columns[name] = [rng.uniform(-4, -1, len(sample.token_ids)) for sample in samples]
        given = algorithm or make_algorithm(
            "dapo", kl={"placement": "loss", "estimator": "k3", "coef": 0.1}, entropy_coef=0.01
        )
        return _Batch(samples, columns, given)

    def chosen(self, members: Sequence[int]) -> _Batch:
        columns: dict[str, Column] = {
            name: [column[i] for i in members] for name, column in self.columns.items()
        }
        return _Batch([self.samples[i] for i in members], columns, self.algorithm)

    def with_junk(self) -> _Batch:
        junk = (np.nan, np.inf, -np.inf)
        columns: dict[str, Column] = {
            name: [
                np.where(sample.response_mask, column[i], junk[(i + n) % 3])
                for i, sample in enumerate(self.samples)
            ]
            for n, (name, column) in enumerate(self.columns.items())
        }
        return _Batch(self.samples, columns, self.algorithm)

    def gradient(self, case: RunnerCase) -> list[Tensor]:
        return self.summed(case, [range(len(self.samples))])

    def summed(self, case: RunnerCase, parts: Sequence[Sequence[int]], ranks: int = 1) -> list[Tensor]:
        totals = total_counts(self.samples)._replace(ranks=ranks)
        for part in parts:
            own = self.chosen(part)
            accumulate_gradient(
                case.runner, own.samples, PolicyObjective(self.algorithm), own.columns, totals=totals
            )
        return [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in case.parameters]

    def averaged(self, make_case: MakeCase, shares: Sequence[Sequence[int]]) -> list[Tensor]:
        of_ranks = [self.summed(make_case(WIDE), [share], ranks=len(shares)) for share in shares]
        return [torch.stack(gradients).mean(0) for gradients in zip(*of_ranks, strict=True)]


def _last(sample: Sample) -> npt.NDArray[np.int32]:
    """1 at the last token, else 0."""
    last: npt.NDArray[np.int32] = np.eye(len(sample.token_ids), dtype=np.int32)[-1]
    return last


def _compared(name: str, expected: list[Tensor], got: list[Tensor], tolerance: float) -> CheckResult:
    scale = max(float(gradient.abs().max()) for gradient in expected)
    difference = max(float((a - b).abs().max()) for a, b in zip(expected, got, strict=True)) / scale
    return CheckResult(
        name=f"gradient is independent of {name}",
        passed=scale > 0 and difference <= tolerance,
        detail=f"differs by {difference:.3g} of its largest entry",
    )
