"""On-policy distillation: on tokens that the student sampled, a teacher's log-probs are the reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from roll_learners.losses.kl import k1

Estimator = Callable[[Tensor, Tensor], Tensor]


def on_policy_distillation(
    student_logprobs: Tensor,
    teacher_logprobs: Sequence[Tensor],
    coefs: Sequence[float],
    *,
    advantages: Tensor | None = None,
    estimator: Estimator = k1,
) -> Tensor:
    """[N], advantages - the sum of coef x KL estimate to each teacher; without advantages it is pure.

    A token is credited for its own log-probs alone, as under a discount of 0.

    Args:
        student_logprobs: [N], at the weights that sampled.
        teacher_logprobs: [N] from each teacher.
        coefs: One weight for each teacher.
        advantages: [N] from rewards, or None for 0.
        estimator: `k1` or `k3`.

    Source: Thinking Machines Lab, "On-policy distillation", 2025; several teachers and mixing as in ROLL.
    """
    total = torch.zeros_like(student_logprobs) if advantages is None else advantages
    for coef, teacher in zip(coefs, teacher_logprobs, strict=True):
        total = total - coef * estimator(student_logprobs, teacher)
    return total
