"""Boxes in pictures, and the question types about videos."""

import json

import numpy as np
import pytest
from roll_rewards import RewardError, make_grader
from roll_rewards.vision.boxes import average_precision, greedy_match, overlaps

CAT, DOG = {"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [20, 20, 30, 30], "label": "dog"}


def test_overlap_equals_hand_computed_values() -> None:
    one = np.array([[0, 0, 10, 10], [5, 5, 5, 5]])
    other = np.array([[5, 0, 15, 10], [0, 0, 10, 10], [50, 50, 60, 60]])
    assert overlaps(one, other).tolist() == [[pytest.approx(50 / 150), 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_greedy_matching_takes_the_best_pair_first() -> None:
    matches = greedy_match(np.array([[0.9, 0.8], [0.85, 0.1]]), at_least=0.5)
    assert [(m.found, m.wanted) for m in matches] == [(0, 0)]
    assert greedy_match(np.zeros((2, 2)), at_least=0.0) == []


def test_average_precision_falls_with_confident_false_boxes() -> None:
    overlap = np.array([[1.0], [0.0]])
    assert average_precision(overlap, [0.9, 0.1], 0.5) == pytest.approx(1.0)
    assert average_precision(overlap, [0.1, 0.9], 0.5) == pytest.approx(0.5)
    assert average_precision(np.zeros((0, 1)), [], 0.5) == 0.0


@pytest.mark.parametrize(
    ("boxes", "parts"),
    [
        ([CAT, DOG], {"iou": 1.0, "map": 1.0, "f1": 1.0, "recall": 1.0}),
        ([DOG, CAT], {"iou": 1.0, "map": 1.0}),
        ([CAT], {"iou": 0.5, "map": 0.5, "recall": 0.5, "precision": 1.0}),
        ([CAT, CAT, DOG], {"iou": 2 / 3, "precision": 2 / 3, "recall": 1.0}),
        ([{**CAT, "label": "dog"}, {**DOG, "label": "cat"}], {"iou": 0.0, "map": 0.0}),
        ([], {"iou": 0.0, "map": 0.0}),
    ],
)
async def test_boxes_are_scored(boxes: list[dict[str, object]], parts: dict[str, float]) -> None:
    for text in (
        json.dumps(boxes),
        f"<answer>{json.dumps(boxes)}</answer>",
        f"```json\n{json.dumps(boxes)}\n```",
    ):
        score = await make_grader("detection").grade(text, [CAT, DOG])
        assert {name: score.parts[name] for name in parts} == pytest.approx(parts)
        assert score.value == score.parts["iou"]


async def test_matching_by_overlap_alone_counts_labels_apart() -> None:
    score = await make_grader("detection", match="iou").grade(json.dumps([{**CAT, "label": "cow"}]), [CAT])
    assert (score.value, score.parts["labels"]) == (1.0, 0.0)


async def test_missing_boxes_cost_and_unreadable_ones_are_unparsed() -> None:
    grader = make_grader("detection", missing=0.5)
    assert (await grader.grade(json.dumps([CAT]), [CAT, DOG])).value == pytest.approx(0.5 - 0.25)
    bad = [
        "none",
        '[{"bbox_2d": [10, 10, 0, 0]}]',
        "[[0,0,1e99,1]]",
        "[" * 50_000,
        '[{"bbox_2d": [0,0,"1",1]}]',
    ]
    for text in bad:
        score = await grader.grade(text, [CAT])
        assert (score.value, score.parsed) == (0.0, None)
    assert (await grader.grade("[]", "no boxes")).failure is not None


async def test_many_boxes_do_not_pay() -> None:
    flood = [{"bbox_2d": [x, y, x + 10, y + 10], "label": "cat"} for x in range(20) for y in range(20)]
    assert (await make_grader("detection").grade(json.dumps(flood), [CAT])).value < 0.01


@pytest.mark.parametrize(
    ("kind", "answer", "reference", "value"),
    [
        ("multiple choice", "B", "B", 1.0),
        ("Multiple-Choice", "A", "<answer>B</answer>", 0.0),
        ("numerical", "3.141", "3.14", 1.0),
        ("numerical", "3.15", "3.14", 0.0),
        ("OCR", "exit now", "exit now", 1.0),
        ("OCR", "exit", "exit now", 0.5),
        ("free-form", "a dog runs", "a dog runs", 1.0),
        ("regression", "90", "100", 0.9),
        ("regression", "500", "100", 0.0),
    ],
)
async def test_video_question_uses_the_measure_of_its_type(
    kind: str, answer: str, reference: str, value: float
) -> None:
    grader = make_grader("video_question")
    score = await grader.grade(f"<think>x</think><answer>{answer}</answer>", reference, problem_type=kind)
    assert score.value == pytest.approx(value)


async def test_unknown_question_type_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"knows the types.*problem_type='riddle'"):
        await make_grader("video_question").grade("<answer>x</answer>", "x", problem_type="riddle")
