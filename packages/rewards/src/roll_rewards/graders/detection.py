"""Grader `detection`: boxes with labels against those of the reference."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.graders.json_answer import json_text
from roll_rewards.scores import Score, failed
from roll_rewards.vision.boxes import COCO_THRESHOLDS, average_precision, greedy_match, overlaps

_BOX_KEYS = ("bbox_2d", "bbox", "box", "boxes", "position", "Position")
_LABEL_KEYS = ("label", "category", "name", "class")
_MAX_BOXES = 500
_MAX_CHARS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A labelled box.

    Example: `Box(corners=(0, 0, 10, 10), label="cat")`.

    Attributes:
        corners: x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, in any unit that both sides share.
        label: What it holds, lower case; empty without labels.
        confidence: Orders boxes for mAP.
    """

    corners: tuple[float, float, float, float]
    label: str = ""
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Mean overlap or mAP of the boxes in the response's JSON, 0..1; text without readable boxes is unparsed.

    The answer, in `<answer>` tags or a fence, is a list of `{"bbox_2d": [x1, y1, x2, y2], "label": "cat"}`
    or of bare `[x1, y1, x2, y2]`. Parts: `iou` (overlap of matched boxes, over the larger number of
    boxes), `map`, `f1`, `precision`, `recall`, and `labels` (matched boxes with the right label).

    Example: `Detection(metric="iou", match="label", at_least=0.5)`.

    Attributes:
        metric: What the value is: `iou`, `map` (mean over labels and COCO's ten thresholds), or `f1` of
            matches.
        match: Boxes are matched greedily by `iou` alone, or only within the same `label`.
        at_least: Lowest overlap of a match, 0..1.
        missing: Taken off for each wanted box that was not found, divided by their number; at least 0.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: An option is out of its range.
    """

    metric: Literal["iou", "map", "f1"] = "iou"
    match: Literal["iou", "label"] = "label"
    at_least: float = 0.5
    missing: float = 0.0
    thinking: Thinking = "strip"

    def __post_init__(self) -> None:
        if not 0 <= self.at_least <= 1 or not 0 <= self.missing < math.inf:
            raise RewardError(
                "grader 'detection' needs 'at_least' in 0..1 and 'missing' of at least 0, "
                f"got {self.at_least} and {self.missing}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The metric; `parsed` is the JSON text. See `Grader.grade`."""
        wanted = _boxes(_loaded(reference) if isinstance(reference, str) else reference)
        if wanted is None:
            return failed("reference", f"grader 'detection' needs a list of boxes, got {reference!r:.80}")
        text = json_text(visible_part(response, thinking=self.thinking)[-_MAX_CHARS:], "any")
        found = _boxes(_loaded(text))
        if found is None:
            return Score(value=0.0)
        parts = self._parts(found, wanted)
        value = parts[self.metric]
        if wanted and self.missing:
            value -= self.missing * (1 - parts["recall"])
        return Score(value=max(value, -self.missing), parts=parts, parsed=text[:500])

    def _parts(self, found: list[Box], wanted: list[Box]) -> dict[str, float]:
        if not found or not wanted:
            same = float(len(found) == len(wanted))
            return dict.fromkeys(("iou", "map", "f1", "precision", "recall", "labels"), same)
        overlap = overlaps(_corners(found), _corners(wanted))
        alike = np.array([[one.label == other.label for other in wanted] for one in found])
        matches = greedy_match(
            np.where(alike, overlap, 0.0) if self.match == "label" else overlap, at_least=self.at_least
        )
        named = sum(found[match.found].label == wanted[match.wanted].label for match in matches)
        return {
            "iou": sum(match.overlap for match in matches) / max(len(found), len(wanted)),
            "map": _mean_average_precision(found, wanted, overlap),
            "f1": 2 * len(matches) / (len(found) + len(wanted)),
            "precision": len(matches) / len(found),
            "recall": len(matches) / len(wanted),
            "labels": named / len(matches) if matches else 0.0,
        }


def _mean_average_precision(found: list[Box], wanted: list[Box], overlap: np.ndarray) -> float:
    values = []
    for label in sorted({box.label for box in wanted}):
        rows = [index for index, box in enumerate(found) if box.label == label]
        columns = [index for index, box in enumerate(wanted) if box.label == label]
        confidence = [found[index].confidence for index in rows]
        part = overlap[np.ix_(rows, columns)]
        values += [average_precision(part, confidence, threshold) for threshold in COCO_THRESHOLDS]
    return float(np.mean(values))


def _corners(boxes: list[Box]) -> np.ndarray:
    return np.array([box.corners for box in boxes], dtype=np.float64)


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _boxes(value: object) -> list[Box] | None:
    """Boxes of a JSON value; None when there is anything else in it."""
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple) or len(value) > _MAX_BOXES:
        return None
    if len(value) == 4 and all(_is_number(item) for item in value):
        value = [value]
    boxes = [_box(item) for item in value]
    known = [box for box in boxes if box is not None]
    return known if len(known) == len(boxes) else None


def _box(item: object) -> Box | None:
    label, confidence, corners = "", 1.0, item
    if isinstance(item, Mapping):
        corners = next((item[key] for key in _BOX_KEYS if key in item), None)
        label = str(next((item[key] for key in _LABEL_KEYS if key in item), "")).strip().casefold()
        given = item.get("confidence", item.get("Confidence", item.get("score", 1.0)))
        confidence = float(given) if _is_number(given) else 1.0
    if not isinstance(corners, list | tuple) or len(corners) != 4 or not all(map(_is_number, corners)):
        return None
    x1, y1, x2, y2 = (float(corner) for corner in corners)
    if x1 > x2 or y1 > y2:
        return None
    return Box(corners=(x1, y1, x2, y2), label=label, confidence=confidence)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
