"""Boxes in pictures: intersection over union, greedy matching and average precision. Pure functions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

COCO_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""Overlaps at which COCO's mAP counts a match: 0.5, 0.55, ..., 0.95."""


class Match(NamedTuple):
    """A found box (index), a wanted one (index) and their overlap."""

    found: int
    wanted: int
    overlap: float


def overlaps(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Intersection over union of every pair of boxes.

    Args:
        found: float[F, 4], corners x1, y1, x2, y2.
        wanted: float[W, 4], the same.

    Returns:
        float64[F, W] in 0..1; a box without area overlaps with nothing.
    """
    one, other = found.reshape(-1, 1, 4).astype(np.float64), wanted.reshape(1, -1, 4).astype(np.float64)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    shared = np.clip(sides, 0, None).prod(axis=-1)
    areas = [np.clip(box[..., 2:] - box[..., :2], 0, None).prod(axis=-1) for box in (one, other)]
    union = areas[0] + areas[1] - shared
    result: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return result


def greedy_match(scores: np.ndarray, *, at_least: float) -> list[Match]:
    """Pairs by falling score, each box in one pair at most.

    Args:
        scores: float[F, W].
        at_least: Lowest score of a pair; pairs with 0 never match.
    """
    left = np.array(scores, dtype=np.float64)
    matches = []
    for _ in range(min(left.shape)):
        found, wanted = (int(index) for index in np.unravel_index(int(left.argmax()), left.shape))
        best = float(left[found, wanted])
        if best <= 0 or best < at_least:
            break
        matches.append(Match(found, wanted, best))
        left[found, :] = -1.0
        left[:, wanted] = -1.0
    return matches


def average_precision(overlap: np.ndarray, confidence: Sequence[float], threshold: float) -> float:
    """Area below the precision-recall curve at 101 recalls, 0..1, of boxes of one label.

    Args:
        overlap: float[F, W], see `overlaps`; W is above 0.
        confidence: F numbers; boxes are taken by falling confidence, equal ones in their order.
        threshold: Overlap from which a box is found.

    Source: COCO's detection evaluation.
    """
    taken, hits = set[int](), []
    for box in sorted(range(len(confidence)), key=lambda index: -confidence[index]):
        order = [int(index) for index in np.argsort(-overlap[box], kind="stable")]
        free = next((i for i in order if i not in taken and overlap[box, i] >= threshold), None)
        hits.append(free is not None)
        taken |= {free} if free is not None else set()
    if not hits:
        return 0.0
    right = np.cumsum(hits)
    recall = right / overlap.shape[1]
    precision = np.maximum.accumulate((right / np.arange(1, len(hits) + 1))[::-1])[::-1]
    places = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(np.mean([precision[place] if place < len(precision) else 0.0 for place in places]))
