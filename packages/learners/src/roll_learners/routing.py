"""The routers of a mixture of experts: replay of what an engine recorded, and a loss that balances them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roll_learners.errors import LearnerError

AGREEMENT = 1e-3
"""Relative difference up to which a router's weights are what its formula gives."""


class Routers:
    """All routers of a model; hooks put recorded experts into their outputs, or keep their logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Args:
        model: Of transformers, whose routers give logits, weights and experts of each token (Qwen3-MoE,
            Mixtral and their like).

        Raises:
            LearnerError: It has none, or they weigh experts in another way than by a softmax.
        """
        # transformers leaves the method untyped.
        decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
        self._layers = len(decoder.layers)
        self._routers = {
            number: module
            for number, layer in enumerate(decoder.layers)
            for module in layer.modules()
            if type(module).__name__.endswith("TopKRouter")
        }
        if not self._routers:
            raise LearnerError(f"{type(model).__name__} has no router of experts that is known")
        self._normalised = {number: _is_normalised(each) for number, each in self._routers.items()}
        self._experts: Tensor | None = None
        self._logits: dict[int, Tensor] = {}
        self._recording = False
        for number, router in self._routers.items():
            router.register_forward_hook(functools.partial(self._routed, number))

    def replay(self, experts: Tensor | None) -> None:
        """Sets what the next pass, and its second one under gradient checkpointing, routes by.

        Args:
            experts: int64[T, L, K] of the pass's T tokens; L counts all layers or the sparse ones, and a
                token with -1 is routed by the weights. None routes all by the weights.

        Raises:
            LearnerError: It does not fit the model.
        """
        self._experts = None
        if experts is None:
            return
        layers, chosen = experts.shape[1:]
        known = {self._layers, len(self._routers)}
        router = next(iter(self._routers.values()))
        if layers not in known or chosen != router.top_k:
            raise LearnerError(
                f"routed_experts has {layers} layers and {chosen} experts a token; the model has "
                f"{self._layers} layers, of which {len(self._routers)} are sparse, and {router.top_k} "
                "experts a token"
            )
        if int(experts.max()) >= self._count(router):
            raise LearnerError(
                f"routed_experts names expert {int(experts.max())}; the model has 0 to "
                f"{self._count(router) - 1}"
            )
        places = dict(zip(self._routers, range(len(self._routers)), strict=True))
        every = layers == self._layers
        self._experts = experts[:, [number if every else places[number] for number in self._routers]]

    def record(self) -> None:
        """Keeps the logits of the next pass."""
        self._recording, self._logits = True, {}

    def imbalance(self, rows: Tensor, count: int) -> Tensor:
        """[R], of each sequence of the recorded pass, averaged over layers; 1 where all experts get the same.

        Args:
            rows: int64[T], the sequence of each token, -1 for a pad.
            count: R.

        Source: arXiv 2412.19437, eq. 17 to 20: E / (K T) x sum over experts of (tokens sent) x (mean weight).
        """
        self._recording = False
        real = rows >= 0
        tokens = torch.bincount(rows[real], minlength=count)
        total = torch.zeros(count, device=rows.device)
        for number, logits in self._logits.items():
            weights = logits[real].float().softmax(-1)
            chosen = weights.topk(self._routers[number].top_k).indices
            sent = torch.zeros_like(weights).scatter(1, chosen, 1.0)
            shape = (count, weights.shape[1])
            sums = weights.new_zeros(shape).index_add(0, rows[real], weights)
            loads = weights.new_zeros(shape).index_add(0, rows[real], sent)
            share = (sums * loads).sum(1) * weights.shape[1] / self._routers[number].top_k
            total = total + share / tokens.clamp(min=1).square()
        return total / len(self._logits)

    @staticmethod
    def _count(router: Any) -> int:
        count: int = router.weight.shape[0]
        return count

    def _routed(self, number: int, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        """The hook of one router."""
        logits, weights, experts = output
        if self._recording:
            self._logits[number] = logits
        if self._experts is None:
            return output
        recorded = self._experts[:, list(self._routers).index(number)]
        if len(recorded) != len(logits):
            raise LearnerError(f"routed_experts of {len(recorded)} tokens for a pass of {len(logits)}")
        replayed = torch.where(recorded[:, :1] >= 0, recorded, experts)
        return (
            logits,
            _weights(logits, replayed, normalised=self._normalised[number]).to(weights.dtype),
            replayed,
        )


def _weights(logits: Tensor, experts: Tensor, *, normalised: bool) -> Tensor:
    """[T, K], the softmax of logits[T, E] at the experts, and if normalised of these alone."""
    chosen = logits.float().softmax(-1).gather(1, experts)
    return chosen / chosen.sum(-1, keepdim=True) if normalised else chosen


def _is_normalised(router: Any) -> bool:
    """Whether the weights of a token's experts sum to 1, found by trying.

    Raises:
        LearnerError: They are no softmax at all.
    """
    states = torch.linspace(-1, 1, 8 * router.weight.shape[1]).view(8, -1)
    with torch.no_grad():
        output = router(states.to(router.weight.device, router.weight.dtype))
        if isinstance(output, tuple) and len(output) == 3:
            logits, weights, experts = output
            for normalised in (True, False):
                expected = _weights(logits, experts, normalised=normalised)
                if torch.allclose(weights.float(), expected, rtol=max(AGREEMENT, _rounding(weights))):
                    return normalised
    raise LearnerError(f"{type(router).__name__} weighs experts in a way that is not known")


def _rounding(values: Tensor) -> float:
    return 4 * torch.finfo(values.dtype).eps
