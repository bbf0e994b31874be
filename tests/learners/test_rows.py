"""Samples share a row where that is cheaper, and only there."""

import numpy as np
from roll_learners import Sample
from roll_learners.rows import LONGEST_SHARED_ROW, Row, plan_rows


def samples(*shapes: tuple[int, int]) -> list[Sample]:
    """Samples of (prompt, response) tokens; prompts of one length are equal."""
    return [
        Sample.from_completion(np.full(prompt, prompt, np.int32), np.zeros(response, np.int32))
        for prompt, response in shapes
    ]


def test_samples_with_one_prompt_share_a_row_longest_first() -> None:
    rows = plan_rows(samples((9, 3), (4, 2), (9, 6), (4, 2)), budget=999, sharing=128)
    assert rows == [
        Row(members=(2, 0), prompt=9, length=9 + 5 + 2),
        Row(members=(1, 3), prompt=4, length=4 + 1 + 1),
    ]


def test_a_model_that_cannot_share_gets_a_row_a_sample() -> None:
    rows = plan_rows(samples((9, 3), (9, 6), (5, 0)), budget=999, sharing=None)
    assert rows == [Row(members=(0,), prompt=9, length=11), Row(members=(1,), prompt=9, length=14)]


def test_long_responses_to_a_short_prompt_stay_apart() -> None:
    rows = plan_rows(samples((2, 900), (2, 900)), budget=9999, sharing=16)
    assert [row.members for row in rows] == [(0,), (1,)]


def test_a_shared_row_stays_within_budget_and_within_the_size_of_a_mask() -> None:
    rows = plan_rows(samples(*[(50, 10)] * 8), budget=80, sharing=4096)
    assert [len(row.members) for row in rows] == [3, 3, 2]
    rows = plan_rows(samples(*[(500, 600)] * 8), budget=10**6, sharing=4096)
    assert max(row.length for row in rows) <= LONGEST_SHARED_ROW
    assert len(rows) < 8
