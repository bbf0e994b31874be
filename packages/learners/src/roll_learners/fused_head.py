"""Log-probs and entropy of tokens from hidden states and a head's weight, in tiles: no [N, V] logits exist.

The forward goes once over tiles of the vocabulary and keeps two numbers a token. The backward makes each tile
again, turns it into the gradient of its logits in place, and adds that to the gradients of states and weight,
so that only the head is computed twice, never the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roll_learners.errors import LearnerError

LOGITS_PER_TILE = {"cpu": 2**22}
"""Logits that exist at a time: 16 MiB of float32 stay near a CPU's caches."""

LOGITS_PER_DEVICE_TILE = 2**26
"""On other devices, where a launch costs more than memory."""

LOGITS_WITH_SLOPES = 2**25
"""Where slopes are known: whole rows of logits, so many that the weight's gradient is seldom added to."""

ROWS_PER_TILE = 2048
"""Tokens of a tile; more make it narrower, so that the weight's gradient is added to in thinner strips."""


class LogitsRule(NamedTuple):
    """From the product of state and weight, z, to a logit: cap x tanh(scale x z / cap) / temperature.

    Attributes:
        scale: Factor of the product (Granite, Cohere).
        cap: Soft cap (Gemma), or None.
        temperature: Above 0.
    """

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0


def linear_logprobs(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    rule: LogitsRule | None = None,
    entropy: bool = False,
    slopes: Tensor | None = None,
    logits_per_tile: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits) at the targets, and the entropy of softmax(logits), with exact gradients.

    Args:
        states: [N, H].
        weight: [V, H], of the same dtype.
        targets: int64[N], 0 to V - 1.
        bias: [V], or None.
        rule: What is done to the products; None is nothing.
        entropy: Whether the entropy is computed; it has a gradient too.
        slopes: [N], the derivative of the loss by each log-prob, up to a factor, where it is known before
            they are (a negative log-likelihood): the gradient is then made in the forward and the head
            computed once. Not with `entropy`.
        logits_per_tile: Logits that exist at a time; None suits the device.

    Returns:
        log-probs[N] and entropy[N] or None, at least float32.

    Raises:
        LearnerError: `slopes` with `entropy`; in the backward, slopes that are not those of the loss.
    """
    given = LogitsRule() if rule is None else rule
    if slopes is not None:
        if entropy:
            raise LearnerError("linear_logprobs: slopes and entropy exclude each other")
        size = logits_per_tile or LOGITS_WITH_SLOPES
        found: Tensor = _KnownSlopes.apply(states, weight, bias, targets, given, slopes, size)
        return found, None
    tile = logits_per_tile or LOGITS_PER_TILE.get(states.device.type, LOGITS_PER_DEVICE_TILE)
    logprobs, entropies = _LinearLogprobs.apply(states, weight, bias, targets, given, entropy, tile)
    return logprobs, entropies if entropy else None


class _Tile(NamedTuple):
    rows: slice
    words: slice


def _tiles(count: int, vocabulary: int, size: int) -> Iterator[_Tile]:
    """Rows outside, words inside."""
    height = max(1, min(count, ROWS_PER_TILE))
    width = max(1, size // height)
    for row in range(0, count, height):
        for word in range(0, vocabulary, width):
            yield _Tile(slice(row, min(row + height, count)), slice(word, min(word + width, vocabulary)))


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, rule: LogitsRule) -> Tensor:
    """[n, v], at least float32, a tensor of its own."""
    product = states @ weight.T if bias is None else torch.addmm(bias, states, weight.T)
    logits = product.float() if product.dtype in (torch.bfloat16, torch.float16) else product
    if rule.cap is not None:
        return logits.mul_(rule.scale / rule.cap).tanh_().mul_(rule.cap / rule.temperature)
    factor = rule.scale / rule.temperature
    return logits if factor == 1.0 else logits.mul_(factor)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rule: LogitsRule,
        entropy: bool,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.float64 if states.dtype == torch.float64 else torch.float32
        count, vocabulary = len(states), len(weight)
        greatest = states.new_full((count,), -torch.inf, dtype=kind)
        total, weighted, chosen = (states.new_zeros(count, dtype=kind) for _ in range(3))
        for rows, words in _tiles(count, vocabulary, size):
            own = None if bias is None else bias[words]
            logits = _logits(states[rows], weight[words], own, rule)
            _pick(logits, targets[rows], words, chosen[rows])
            peak = torch.maximum(greatest[rows], logits.amax(1))
            # A row of -inf alone has no peak to subtract.
            shift = torch.where(peak == -torch.inf, 0.0, peak)
            fade = (greatest[rows] - shift).exp_()
            greatest[rows] = peak
            if entropy:
                masses = (logits - shift[:, None]).exp_()
                # A logit of -inf has probability 0 and must add 0; times -inf it would add NaN.
                finite = logits.clamp_(min=torch.finfo(kind).min)
                weighted[rows] = weighted[rows] * fade + torch.linalg.vecdot(masses, finite)
            else:
                masses = logits.sub_(shift[:, None]).exp_()
            total[rows] = total[rows] * fade + masses.sum(1)
        normaliser = greatest + total.log()
        entropies = normaliser - weighted / total if entropy else normaliser
        context.save_for_backward(states, weight, bias, targets, normaliser, entropies)
        context.rule, context.entropy, context.size = rule, entropy, size
        if not entropy:
            entropies = entropies.clone()
            context.mark_non_differentiable(entropies)
        return chosen - normaliser, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        context: Any, by_logprob: Tensor, by_entropy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        states, weight, bias, targets, normaliser, entropies = context.saved_tensors
        rule: LogitsRule = context.rule
        needs_states, needs_weight, needs_bias = context.needs_input_grad[:3]
        of_states = torch.zeros(states.shape, dtype=normaliser.dtype, device=states.device)
        of_weight = torch.zeros_like(weight) if needs_weight else None
        of_bias = torch.zeros_like(bias) if needs_bias else None
        for rows, words in _tiles(len(states), len(weight), context.size):
            own = None if bias is None else bias[words]
            logits = _logits(states[rows], weight[words], own, rule)
            slope = _capped_slope(logits, rule)
            slopes = by_logprob[rows].neg()[:, None]
            if context.entropy:
                gap = (logits - (normaliser - entropies)[rows, None]).clamp_(
                    min=torch.finfo(logits.dtype).min
                )
                slopes = slopes - gap.mul_(by_entropy[rows, None])
            gradient = logits.sub_(normaliser[rows, None]).exp_().mul_(slopes)
            _add_at(gradient, targets[rows], words, by_logprob[rows])
            gradient = gradient.mul_(rule.scale / rule.temperature if slope is None else slope)
            flat = gradient.to(weight.dtype)
            if needs_states:
                of_states[rows] += flat @ weight[words]
            if of_weight is not None:
                of_weight[words].addmm_(flat.T, states[rows])
            if of_bias is not None:
                of_bias[words] += flat.sum(0)
        return (
            of_states.to(states.dtype) if needs_states else None,
            of_weight,
            of_bias,
            None,
            None,
            None,
            None,
        )


class _KnownSlopes(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rule: LogitsRule,
        slopes: Tensor,
        size: int,
    ) -> Tensor:
        logprobs = torch.zeros(len(states), dtype=slopes.dtype, device=states.device)
        of_states, of_weight, of_bias = (
            torch.zeros_like(each) if each is not None and needed else None
            for each, needed in zip((states, weight, bias), context.needs_input_grad[:3], strict=True)
        )
        every = slice(0, len(weight))
        height = max(1, size // len(weight))
        for row in range(0, len(states), height):
            rows = slice(row, row + height)
            logits = _logits(states[rows], weight, bias, rule)
            slope = _capped_slope(logits, rule)
            _pick(logits, targets[rows], every, logprobs[rows])
            normaliser = logits.logsumexp(1)
            logprobs[rows] -= normaliser
            gradient = logits.sub_(normaliser[:, None]).exp_().mul_(-slopes[rows, None])
            _add_at(gradient, targets[rows], every, slopes[rows])
            gradient = gradient.mul_(rule.scale / rule.temperature if slope is None else slope)
            flat = gradient.to(weight.dtype)
            if of_states is not None:
                torch.mm(flat, weight, out=of_states[rows])
            if of_weight is not None:
                of_weight.addmm_(flat.T, states[rows])
            if of_bias is not None:
                of_bias += flat.sum(0)
        context.save_for_backward(slopes, of_states, of_weight, of_bias)
        return logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        context: Any, by_logprob: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        slopes, *gradients = context.saved_tensors
        square = slopes.square().sum()
        factor = torch.where(square > 0, (by_logprob * slopes).sum() / square, 0.0)
        # A loss that is not finite has a gradient that is not finite either, which whoever updates finds out.
        far = (by_logprob - factor * slopes).abs().max() > 1e-3 * by_logprob.abs().max()
        if len(slopes) and bool(far):
            raise LearnerError(
                "linear_logprobs: the loss has other derivatives by log-probs than the slopes given"
            )
        of_states, of_weight, of_bias = (
            None if each is None else each * factor.to(each.dtype) for each in gradients
        )
        return of_states, of_weight, of_bias, None, None, None, None


def _capped_slope(logits: Tensor, rule: LogitsRule) -> Tensor | None:
    """[n, v], the derivative of logits by products where they are capped."""
    if rule.cap is None:
        return None
    share = logits * (rule.temperature / rule.cap)
    return share.square_().neg_().add_(1).mul_(rule.scale / rule.temperature)


def _inside(targets: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Which targets[n] are in the tile, and their columns there, 0 for those that are not."""
    columns = targets - words.start
    inside = (columns >= 0) & (targets < words.stop)
    return inside, torch.where(inside, columns, 0)[:, None]


def _pick(logits: Tensor, targets: Tensor, words: slice, chosen: Tensor) -> None:
    """Writes the logits of the targets that are in the tile into chosen[n]."""
    inside, columns = _inside(targets, words)
    chosen.copy_(torch.where(inside, logits.gather(1, columns)[:, 0], chosen))


def _add_at(gradient: Tensor, targets: Tensor, words: slice, values: Tensor) -> None:
    """Adds values[n] at the targets that are in the tile."""
    inside, columns = _inside(targets, words)
    gradient.scatter_add_(1, columns, torch.where(inside, values, 0.0)[:, None])
