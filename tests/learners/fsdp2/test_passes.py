"""A micro-batch is divided into slices of columns without losing a token."""

import numpy as np
import pytest
import torch
from roll_learners import Sample
from roll_learners.batch import collate
from roll_learners.fsdp2.passes import own_slice
from roll_learners.rows import Row, plan_rows


def samples() -> list[Sample]:
    prompt = np.array([1, 2, 3], np.int32)
    return [
        Sample.from_completion(prompt, np.arange(4, 4 + length, dtype=np.int32)) for length in (5, 2, 7, 1)
    ]


@pytest.mark.parametrize("sharing", [None, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_trained_token_is_in_one_slice_behind_the_token_that_predicts_it(
    ranks: int, sharing: int | None
) -> None:
    rows: list[Row] = plan_rows(samples(), budget=64, sharing=sharing)
    batch = collate(samples(), rows, device="cpu")
    assert (batch.attention_mask is not None) == (sharing is not None)
    seen = []
    for rank in range(ranks):
        piece = own_slice(batch, rank, ranks)
        seen += piece.tokens.tolist()
        before = piece.batch.input_ids.reshape(-1)[piece.batch.positions]
        assert before.tolist() == batch.input_ids.reshape(-1)[batch.positions[piece.tokens]].tolist()
        assert piece.batch.targets.tolist() == batch.targets[piece.tokens].tolist()
        assert piece.places.shape == piece.batch.input_ids.shape
    assert sorted(seen) == list(range(len(batch.targets)))


def test_slices_keep_the_positions_that_tokens_have_in_their_samples() -> None:
    batch = collate(samples(), plan_rows(samples(), budget=64, sharing=None), device="cpu")
    places = torch.cat([own_slice(batch, rank, 2).places for rank in range(2)], 1)
    length = batch.input_ids.shape[1]
    assert torch.equal(places[:, :length], torch.arange(length).expand(len(places), length))
