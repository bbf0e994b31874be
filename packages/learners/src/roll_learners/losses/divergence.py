"""Divergences between a teacher's and a student's next-token distributions.

All take log-probs[N, V] (or [N, K] over a shared choice of tokens), already divided by a temperature and
normalised, and return one number a token in nats, without a factor T^2. A log-prob of -inf has no share.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST = -1e4
"""In place of -inf, so that 0 x -inf is 0 in values and gradients."""


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """[N], KL(teacher || student): the student covers all the teacher does.

    Args:
        student: [N, V], with gradient.
        teacher: [N, V].

    Source: Hinton et al., arXiv 1503.02531.
    """
    return _kl(teacher, student)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """[N], KL(student || teacher): the student keeps to what the teacher finds likely.

    Args:
        student: [N, V], with gradient.
        teacher: [N, V].

    Source: MiniLLM, arXiv 2306.08543, eq. 1.
    """
    return _kl(student, teacher)


def generalised_js(student: Tensor, teacher: Tensor, *, beta: float = 0.5) -> Tensor:
    """[N], beta KL(teacher || m) + (1 - beta) KL(student || m), m = beta teacher + (1 - beta) student.

    Args:
        student: [N, V], with gradient.
        teacher: [N, V].
        beta: 0 to 1; 0.5 is Jensen-Shannon. At 0 it is `forward_kl` and at 1 `reverse_kl`, to which the
            quotients by beta and by 1 - beta tend.

    Source: GKD, arXiv 2306.13649, eq. 1.
    """
    if beta in (0.0, 1.0):
        return reverse_kl(student, teacher) if beta else forward_kl(student, teacher)
    mixture = _mixture(teacher, student, beta)
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def skewed_forward_kl(student: Tensor, teacher: Tensor, *, skew: float = 0.1) -> Tensor:
    """[N], KL(teacher || skew teacher + (1 - skew) student).

    Args:
        student: [N, V], with gradient.
        teacher: [N, V].
        skew: Above 0, below 1.

    Source: DistiLLM, arXiv 2402.03898, eq. 4.
    """
    return _kl(teacher, _mixture(teacher, student, skew))


def skewed_reverse_kl(student: Tensor, teacher: Tensor, *, skew: float = 0.1) -> Tensor:
    """[N], KL(student || (1 - skew) teacher + skew student).

    Args:
        student: [N, V], with gradient.
        teacher: [N, V].
        skew: Above 0, below 1.

    Source: DistiLLM, arXiv 2402.03898, eq. 5.
    """
    return _kl(student, _mixture(teacher, student, 1 - skew))


def adaptive_kl(student: Tensor, teacher: Tensor, *, head_mass: float = 0.5) -> Tensor:
    """[N], forward and reverse KL, weighted by where the two distributions are farther apart.

    The tail is the least likely tokens that hold at most head_mass of the teacher's probability; the
    head is the rest. Forward KL is weighted by the share of the total difference that is in the head.

    Args:
        student: [N, V], with gradient; the weights are constants.
        teacher: [N, V].
        head_mass: 0 to 1.

    Source: AKL, arXiv 2404.02657, eq. 10 to 12.
    """
    probabilities = teacher.exp()
    ascending, order = probabilities.sort(-1)
    head = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, ascending.cumsum(-1) > head_mass)
    gaps = (probabilities - student.detach().exp()).abs()
    total = gaps.sum(-1)
    share = torch.where(total > 0, (gaps * head).sum(-1) / total.clamp(min=1e-30), 0.5)
    return share * forward_kl(student, teacher) + (1 - share) * reverse_kl(student, teacher)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    left, right = left.clamp(min=LOWEST), right.clamp(min=LOWEST)
    return (left.exp() * (left - right)).sum(-1)


def _mixture(teacher: Tensor, student: Tensor, weight: float) -> Tensor:
    """Log-probs of weight x teacher + (1 - weight) x student."""
    return torch.logaddexp(
        teacher.clamp(min=LOWEST) + math.log(weight), student.clamp(min=LOWEST) + math.log1p(-weight)
    )
