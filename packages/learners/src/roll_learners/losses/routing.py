"""Weights of experts in a mixture, when the experts that the engine chose are replayed in training."""

from __future__ import annotations

from torch import Tensor


def replayed_gates(router_logits: Tensor, experts: Tensor) -> Tensor:
    """[N, E], softmax of the training logits over the recorded experts, 0 for all others.

    Gradient flows through the logits of the recorded experts alone.

    Args:
        router_logits: [N, E], with gradient.
        experts: int64[N, K], different experts that the engine routed each token to.

    Source: R3, arXiv 2510.11370, eq. 7.
    """
    chosen = router_logits.gather(-1, experts).softmax(-1)
    return router_logits.new_zeros(router_logits.shape).scatter(-1, experts, chosen)
