"""Samples become padded inputs and flat positions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_learners import LearnerError, Sample
from roll_learners.batch import (
    check_columns,
    collate,
    gather_column,
    micro_batches,
    scatter_tokens,
    total_counts,
)
from roll_learners.rows import Row

ALONE: dict[str, Any] = {"budget": 64, "sharing": None, "device": "cpu"}


def sample(mask: list[int]) -> Sample:
    return Sample(
        token_ids=np.arange(10, 10 + len(mask), dtype=np.int32), response_mask=np.array(mask, np.bool_)
    )


def test_only_what_precedes_the_last_trained_token_is_fed() -> None:
    [batch] = micro_batches([sample([0, 0, 1, 0, 1, 0]), sample([0, 0]), sample([0, 1])], **ALONE)
    assert batch.members.tolist() == [2, 0]
    assert batch.input_ids.tolist() == [[10, 0, 0, 0], [10, 11, 12, 13]]
    assert batch.positions.tolist() == [0, 5, 7]
    assert batch.targets.tolist() == [11, 12, 14]
    assert batch.segments.ids.tolist() == [0, 1, 1]
    assert batch.attention_mask is None


def test_a_shared_row_has_the_prompt_once_and_branches_that_do_not_see_each_other() -> None:
    prompt = np.array([7, 8], np.int32)
    samples = [Sample.from_completion(prompt, np.array(ids, np.int32)) for ids in ((1, 2, 3), (4, 5))]
    batch = collate(samples, [Row(members=(0, 1), prompt=2, length=5)], device="cpu", pad_to=6)
    assert batch.input_ids.tolist() == [[7, 8, 1, 2, 4, 0]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 2, 0]]
    assert batch.positions.tolist() == [1, 2, 3, 1, 4]
    assert batch.targets.tolist() == [1, 2, 3, 4, 5]
    assert batch.attention_mask is not None
    assert batch.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 6), max_size=12), st.integers(20, 90), st.sampled_from([None, 1, 64]))
def test_every_sample_with_a_trained_token_is_in_one_micro_batch(
    lengths: list[int], budget: int, sharing: int | None
) -> None:
    prompts = [np.full(1 + i % 3, i % 3, np.int32) for i in range(len(lengths))]
    samples = [
        Sample.from_completion(prompt, np.arange(length, dtype=np.int32))
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    batches = list(micro_batches(samples, budget=budget, sharing=sharing, device="cpu"))
    assert sorted(i for batch in batches for i in batch.members) == [i for i, n in enumerate(lengths) if n]
    assert all(batch.input_ids.numel() <= budget for batch in batches)
    for batch in batches:
        targets = np.concatenate([samples[i].token_ids[samples[i].response_mask] for i in batch.members])
        assert batch.targets.tolist() == targets.tolist()


def test_counts_are_of_trained_tokens() -> None:
    samples = [sample([0, 0, 1, 0, 1]), sample([0, 0])]
    assert total_counts(samples) == (2, 1, 1)


@settings(max_examples=30)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=5))
def test_scattering_reverses_gathering(masks: list[list[bool]]) -> None:
    samples = [sample([0, *mask]) for mask in masks]
    columns = [np.where(each.response_mask, each.token_ids, 0).astype(np.float64) for each in samples]
    flat = gather_column("x", columns, samples, np.arange(len(samples)))
    again = scatter_tokens(flat, samples)
    assert [column.tolist() for column in again] == [column.tolist() for column in columns]


def test_a_value_of_a_sample_is_given_to_each_of_its_tokens() -> None:
    samples = [sample([0, 1]), sample([0, 1, 0, 1])]
    flat = gather_column("x", np.array([5.0, 7.0]), samples, np.array([1, 0]))
    assert flat.tolist() == [7.0, 7.0, 5.0]


def test_a_column_that_does_not_fit_is_named() -> None:
    samples = [sample([0, 1]), sample([0, 1, 1])]
    with pytest.raises(LearnerError, match="column 'advantages' has 1 entries for 2 samples"):
        check_columns({"advantages": np.zeros(1)}, samples)
    with pytest.raises(LearnerError, match=r"column 'old' has \[2\] values for sample 1 of 3 tokens"):
        gather_column("old", [np.zeros(2), np.zeros(2)], samples, np.array([0, 1]))
