"""Losses of preferences between responses, from log-probs of whole responses.

"Sum" log-probs are summed over a response's tokens, "mean" ones divided by their number.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def preference_logits(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """[P], by how much more the policy prefers the chosen response than the reference does.

    Args:
        chosen: [P], policy.
        rejected: [P], policy.
        ref_chosen: [P], reference.
        ref_rejected: [P], reference.

    Source: DPO, arXiv 2305.18290, eq. 7.
    """
    return (chosen - rejected) - (ref_chosen - ref_rejected)


def dpo(logits: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """[P], -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h); with smoothing s it is cDPO.

    Args:
        logits: [P], `preference_logits` of sums.
        beta: Above 0.
        label_smoothing: The share of labels taken to be wrong, 0 to 0.5.

    Source: arXiv 2305.18290, eq. 7; cDPO, E. Mitchell, 2023, eq. 3.
    """
    z = beta * logits
    return -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)


def robust_dpo(logits: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """[P], DPO made unbiased for labels of which a share is wrong.

    Args:
        logits: [P], `preference_logits` of sums.
        beta: Above 0.
        label_smoothing: That share, at least 0 and below 0.5.

    Source: arXiv 2403.00409, eq. 11.
    """
    z, s = beta * logits, label_smoothing
    return (-(1 - s) * logsigmoid(z) + s * logsigmoid(-z)) / (1 - 2 * s)


def hinge(logits: Tensor, *, beta: float) -> Tensor:
    """[P], max(0, 1 - beta h).

    Args:
        logits: [P], `preference_logits` of sums.
        beta: Above 0.

    Source: SLiC-HF, arXiv 2305.10425, in the form of RSO, arXiv 2309.06657, eq. 7.
    """
    return torch.relu(1 - beta * logits)


def ipo(logits: Tensor, *, beta: float) -> Tensor:
    """[P], (h - 1 / (2 beta))^2.

    Args:
        logits: [P], `preference_logits` of means, the authors' choice; ROLL takes sums.
        beta: Above 0.

    Source: IPO, arXiv 2310.12036, eq. 17.
    """
    return (logits - 1 / (2 * beta)).square()


def simpo(logits: Tensor, *, beta: float, gamma: float) -> Tensor:
    """[P], -log sigmoid(beta h - gamma).

    Args:
        logits: [P], mean log-probs of the chosen less those of the rejected; there is no reference.
        beta: Above 0; the paper's values are 2 to 2.5.
        gamma: The margin; about half of beta in the paper.

    Source: SimPO, arXiv 2405.14734, eq. 6.
    """
    return -logsigmoid(beta * logits - gamma)


def orpo(chosen: Tensor, rejected: Tensor, *, coef: float) -> Tensor:
    """[P], the negative mean log-prob of the chosen response + coef x -log sigmoid(log odds ratio).

    Args:
        chosen: [P], mean log-probs, below 0.
        rejected: [P], mean log-probs, below 0.
        coef: Weight of the odds ratio; the paper's lambda, 0.1.

    Source: ORPO, arXiv 2403.07691, eq. 4 to 7.
    """
    odds = (chosen - _log1m_exp(chosen)) - (rejected - _log1m_exp(rejected))
    return -chosen - coef * logsigmoid(odds)


def kto_baseline(policy: Tensor, reference: Tensor) -> Tensor:
    """Scalar, the mean log-ratio of mismatched pairs of prompt and response, at least 0; a constant.

    Args:
        policy: [S], sums.
        reference: [S], sums.

    Source: KTO, arXiv 2402.01306, section 4.1.
    """
    return (policy - reference).detach().mean().clamp(min=0)


def kto(
    policy: Tensor,
    reference: Tensor,
    desirable: Tensor,
    baseline: Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """[S], weight x (1 - sigmoid(beta (h - z0))) for a desirable response, with the sign turned for others.

    Args:
        policy: [S], sums, with gradient.
        reference: [S], sums.
        desirable: bool[S].
        baseline: Scalar z0, `kto_baseline`.
        beta: Above 0.
        desirable_weight: At least 0.
        undesirable_weight: At least 0.

    Source: KTO, arXiv 2402.01306, eq. 8.
    """
    distance = beta * (policy - reference - baseline)
    weight = torch.where(desirable, desirable_weight, undesirable_weight).to(distance.dtype)
    return weight * torch.sigmoid(torch.where(desirable, -distance, distance))


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: float = 0.0) -> Tensor:
    """[P], -log sigmoid(score of the chosen response - score of the rejected one - margin).

    Args:
        chosen: [P], scores of a reward model.
        rejected: [P].
        margin: By how much the chosen score should be higher.

    Source: InstructGPT, arXiv 2203.02155, eq. 1; margin, Llama 2, arXiv 2307.09288, eq. 2.
    """
    return -logsigmoid(chosen - rejected - margin)


def _log1m_exp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0; a mean log-prob of 0 is taken for one a little below."""
    below = x.clamp(max=-torch.finfo(x.dtype).eps)
    return torch.log(-torch.expm1(below))
