"""Micro-batches of a replica: every replica has as many, and each trained token is in one place."""

from typing import Any

import numpy as np
import pytest
import torch
from roll_learners import LearnerError, Sample
from roll_learners.megatron import MegatronLayout
from roll_learners.megatron.feed import Feed, make_feeds

LENGTHS = (3, 9, 2, 7, 1, 12, 4)


def samples() -> list[Sample]:
    return [
        Sample.from_completion(np.arange(1, 4, dtype=np.int32), np.arange(10, 10 + n, dtype=np.int32))
        for n in LENGTHS
    ]


def feeds(layout: MegatronLayout, *, data: int = 1, data_rank: int = 0, **options: Any) -> list[Feed]:
    given = {"context_rank": 0, "hidden": 16, "budget": 24, "packing": False, "device": "cpu"} | options
    return make_feeds(samples(), layout, data=data, data_rank=data_rank, **given)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("data", [1, 2, 5])
def test_every_replica_has_as_many_micro_batches_and_each_sample_one_place(data: int, packing: bool) -> None:
    of_ranks = [feeds(MegatronLayout(), data=data, data_rank=rank, packing=packing) for rank in range(data)]
    assert len({len(own) for own in of_ranks}) == 1
    members = [int(i) for own in of_ranks for feed in own for i in feed.batch.members]
    assert sorted(members) == list(range(len(LENGTHS)))


def test_more_replicas_than_samples_run_rows_without_a_trained_token() -> None:
    of_ranks = [feeds(MegatronLayout(), data=9, data_rank=rank) for rank in range(9)]
    assert {len(own) for own in of_ranks} == {1}
    tokens = [len(own[0].places) for own in of_ranks]
    assert tokens.count(0) == 2
    assert all(own[0].input_ids.numel() for own in of_ranks)


def test_the_interleaved_schedule_gets_a_multiple_of_its_stages() -> None:
    layout = MegatronLayout(pipeline=4, virtual_pipeline=2)
    assert len(feeds(layout)) % 4 == 0


@pytest.mark.parametrize("packing", [False, True])
def test_rows_are_padded_to_what_sequence_parallel_processes_need(packing: bool) -> None:
    layout = MegatronLayout(tensor=4, sequence_parallel=True)
    for feed in feeds(layout, budget=48, packing=packing):
        assert feed.input_ids.shape[1] % 4 == 0
        if feed.boundaries is not None:
            assert feed.boundaries[-1] == feed.input_ids.shape[1]


def test_context_parallel_processes_find_each_trained_token_once_at_its_place() -> None:
    layout = MegatronLayout(context=2)
    halves = [feeds(layout, context_rank=rank, budget=48) for rank in range(2)]
    for first, second in zip(*halves, strict=True):
        assert first.chosen is not None and second.chosen is not None
        chosen = torch.cat([first.chosen, second.chosen])
        assert sorted(chosen.tolist()) == list(range(len(first.batch.targets)))
        for feed in (first, second):
            assert feed.chosen is not None
            before = feed.input_ids.flatten()[feed.places]
            expected = feed.batch.input_ids.flatten()[feed.batch.positions[feed.chosen]]
            assert torch.equal(before, expected)


def test_samples_that_this_back_end_cannot_run_are_refused() -> None:
    ids = np.zeros(4, np.int32)
    routed = Sample(
        token_ids=ids,
        response_mask=np.array([False, True, True, True]),
        routed_experts=np.zeros((4, 1, 1), np.int16),
    )
    with pytest.raises(LearnerError, match="routed_experts, which this back-end does not replay"):
        make_feeds(
            [routed],
            MegatronLayout(),
            data=1,
            data_rank=0,
            context_rank=0,
            hidden=16,
            budget=24,
            packing=False,
            device="cpu",
        )
