"""The gap between engine and learner."""

import math

import pytest
import torch
from roll_learners import probability_gap


def test_a_missing_logprob_is_counted_and_left_out() -> None:
    old = torch.tensor([0.5, 0.25, 0.1]).log()
    gap = probability_gap(old, torch.tensor([math.log(0.4), math.nan, -math.inf]))
    assert gap.gaps.tolist() == pytest.approx([0.1])
    assert gap.missing == 2
