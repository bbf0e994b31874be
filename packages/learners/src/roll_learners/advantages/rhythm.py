"""Weights of tokens from where attention looks: far back at the start of a plan, at anchors from afar.

WAAD (windowed average attention distance) is how far back a token looks in local heads; FAI (future
attention influence) is how much later tokens look at it in global heads. Both are linear in the attention
maps, so each head's map is reduced as it is made and averaging follows.
Source: "Preplan-and-Anchor", arXiv 2510.13554, eq. 7 to 19.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from roll_learners.rhythm import Rhythm


class RhythmSignals(NamedTuple):
    """Attributes:
    waad: [R], of each response token, in tokens.
    fai: [R], mean attention that a token gets from later ones, 0 to 1.
    """

    waad: Tensor
    fai: Tensor


class HeadSignals(NamedTuple):
    """Signals of H heads before heads are chosen.

    Attributes:
        spans: [H], mean distance between a response token and what it attends to.
        waad: [H, R].
        fai: [H, R].
    """

    spans: Tensor
    waad: Tensor
    fai: Tensor


def head_signals(rows: Tensor, queries: Tensor, responses: Tensor, rhythm: Rhythm) -> HeadSignals:
    """The share of some queries in the signals: over chunks of queries they add up to the whole.

    Args:
        rows: [H, C, T], attention of C response tokens to all T tokens, 0 to those after themselves.
        queries: int64[C], positions of the C tokens.
        responses: int64[R], positions of all response tokens; the C are among them.
        rhythm: Window and distances.
    """
    positions = torch.arange(rows.shape[-1], device=rows.device)
    distance = (queries[:, None] - positions).clamp(min=0)
    spans = torch.einsum("hct,ct->h", rows, distance.to(rows.dtype)) / len(responses)
    waad = rows.new_zeros(len(rows), len(responses))
    looked = torch.einsum("hct,ct->hc", rows, distance.clamp(max=rhythm.window).to(rows.dtype))
    waad[:, torch.searchsorted(responses, queries)] = looked
    reading = queries[:, None] - positions
    seen = ((reading >= rhythm.nearest) & (reading <= rhythm.farthest)).to(rows.dtype)
    fai = torch.einsum("hct,ct->ht", rows, seen)[:, responses]
    return HeadSignals(spans=spans, waad=waad, fai=fai / _readers(responses, rhythm).clamp(min=1))


def choose_heads(heads: HeadSignals, share: float) -> RhythmSignals:
    """WAAD averaged over the heads of shortest span, FAI over those of longest.

    Args:
        heads: Of all H heads of all chosen layers.
        share: Each set has round(share x H) heads, at least one.
    """
    count = max(1, math.floor(share * len(heads.spans) + 0.5))
    order = heads.spans.argsort(stable=True)
    return RhythmSignals(waad=heads.waad[order[:count]].mean(0), fai=heads.fai[order[-count:]].mean(0))


def rhythm_weights(signals: RhythmSignals, rhythm: Rhythm) -> Tensor:
    """[R], what the advantage of each token of one response is multiplied by, at least 1.

    Args:
        signals: Of the R tokens.
        rhythm: The rule and its numbers.
    """
    extra = rhythm.amplification - 1
    changes = look_back_changes(signals.waad)
    if rhythm.rule == "local":
        return 1 + extra * _top(changes, rhythm.share)
    anchors = _top(signals.fai, rhythm.share)
    if rhythm.rule == "global":
        return 1 + extra * anchors
    dominated, plans = _dominated(signals.waad, changes, anchors.bool(), rhythm)
    return 1 + extra * (anchors - rhythm.moved * dominated + rhythm.moved * plans)


def scale_advantages(advantages: Tensor, weights: Tensor, *, both_signs: bool = True) -> Tensor:
    """[N], advantages x weights; without both_signs negative ones stay.

    Args:
        advantages: [N].
        weights: [N].
        both_signs: Whether negative advantages are scaled.
    """
    scaled = advantages * weights
    return scaled if both_signs else torch.where(advantages >= 0, scaled, advantages)


def look_back_changes(waad: Tensor) -> Tensor:
    """[R], |WAAD of a token - WAAD of the next|, 0 for the last."""
    changes = torch.zeros_like(waad)
    changes[:-1] = (waad[:-1] - waad[1:]).abs()
    return changes


def _readers(responses: Tensor, rhythm: Rhythm) -> Tensor:
    """int64[R], response tokens at such a distance behind each that their attention makes an anchor."""
    end = torch.searchsorted(responses, responses + rhythm.farthest, right=True)
    return end - torch.searchsorted(responses, responses + rhythm.nearest)


def _top(values: Tensor, share: float) -> Tensor:
    """[R], 1 for the round(share x R) greatest, of equal ones the earlier; else 0."""
    order = values.argsort(stable=True, descending=True)
    chosen = torch.zeros_like(values)
    chosen[order[: math.floor(share * len(values) + 0.5)]] = 1.0
    return chosen


def _dominated(waad: Tensor, changes: Tensor, anchors: Tensor, rhythm: Rhythm) -> tuple[Tensor, Tensor]:
    """[R] each, 1 for anchors that follow a plan close before them, and for the beginnings of those plans."""
    before = torch.nn.functional.pad(changes, (rhythm.lookback, 0), value=-torch.inf)[:-1]
    windows = before.unfold(0, rhythm.lookback, 1)  # [R, lookback], those before each token
    strongest, place = windows.max(-1)
    dominated = anchors & (waad <= rhythm.tau_waad) & (strongest >= rhythm.tau_delta)
    plans = torch.zeros_like(waad)
    at = torch.arange(len(waad), device=waad.device) - rhythm.lookback + place
    plans[at[dominated]] = 1.0
    return dominated.to(waad.dtype), plans
