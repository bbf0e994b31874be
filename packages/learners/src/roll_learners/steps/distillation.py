"""One step of distillation: towards the distributions of teachers on the trained tokens of samples.

The samples are demonstrations, or completions of the student itself (GKD).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from roll_learners.batch import Column
from roll_learners.distillation import Distillation
from roll_learners.distillation_objective import DistillationObjective
from roll_learners.errors import LearnerError
from roll_learners.learner import Learner
from roll_learners.metrics import prefixed, summary
from roll_learners.sample import Sample
from roll_learners.scoring import TopLogits
from roll_learners.update import StepResult


class DistributionSource(Protocol):
    """A teacher beside the learner; `LocalScorer` is one."""

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """[N, H] for each sample, from which `logits` makes each trained token's distribution."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[N, V] at states[N, H], before any temperature."""
        ...

    def top_logits(self, samples: Sequence[Sample], k: int) -> list[TopLogits]:
        """The k greatest logits at each trained token."""
        ...


class DistillationTeacher(NamedTuple):
    """Attributes:
    source: Its distributions.
    weight: Of its divergence among those of all teachers, at least 0.
    tags: Samples with one of these tags learn from it; None for all samples.
    """

    source: DistributionSource
    weight: float = 1.0
    tags: frozenset[str] | None = None


def distillation_step(
    learner: Learner,
    samples: Sequence[Sample],
    distillation: Distillation,
    teachers: Sequence[DistillationTeacher],
) -> StepResult:
    """One update towards the teachers, every trained token weighing the same.

    Args:
        learner: The student.
        samples: Their rewards are not looked at.
        distillation: What is computed.
        teachers: At least one; each gives a divergence, summed by their weights.

    Returns:
        actor/kd_loss and actor/nll (nats a token), actor/grad_norm, actor/lr, actor/skipped_steps and
        response_length/*; and the update itself if it was skipped because it was not finite.

    Raises:
        LearnerError: No teacher, no trained token, or vocabularies that differ.
    """
    lengths = np.array([sample.response_tokens for sample in samples], np.float64)
    if not teachers:
        raise LearnerError("distillation_step: at least one teacher is needed")
    if not lengths.sum():
        raise LearnerError(f"distillation_step: none of {len(samples)} samples has a trained token")
    columns: dict[str, Column] = {}
    heads: list[Callable[[Tensor], Tensor]] = []
    for i, teacher in enumerate(teachers):
        columns |= _columns(i, teacher, samples, distillation)
        heads.append(teacher.source.logits)
    result = learner.update(
        samples, DistillationObjective(distillation, heads), totals=None, indices=None, **columns
    )
    skipped = () if result.skipped is None else (result.skipped,)
    return StepResult(
        metrics=prefixed(result.metrics, "actor") | summary("response_length", lengths),
        updates=1 - len(skipped),
        skipped=skipped,
    )


def _columns(
    i: int, teacher: DistillationTeacher, samples: Sequence[Sample], distillation: Distillation
) -> dict[str, Column]:
    """What the objective needs of one teacher; a sample that does not learn from it is computed too."""
    learns = [teacher.tags is None or sample.tag in teacher.tags for sample in samples]
    weights = np.where(learns, teacher.weight, 0.0)
    if distillation.top_k is None:
        return {f"teacher_weight_{i}": weights, f"teacher_states_{i}": teacher.source.states(samples)}
    top = teacher.source.top_logits(samples, distillation.top_k)
    return {
        f"teacher_weight_{i}": weights,
        f"teacher_ids_{i}": [each.ids.astype(np.float64) for each in top],
        f"teacher_logits_{i}": [each.logits for each in top],
    }
