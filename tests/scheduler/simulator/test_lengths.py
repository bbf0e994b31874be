"""Lengths are what the traces say, and depend on nothing but the seed."""

import json

import numpy as np
import pytest
from roll_scheduler.simulator import (
    TRACES,
    LengthDistribution,
    LognormalLengths,
    RecordedLengths,
    SimulationError,
)


def batch(lengths, groups, size, first=0):
    return np.array(
        [[lengths.tokens(first + group, member) for member in range(size)] for group in range(groups)]
    )


@pytest.mark.parametrize(
    ("trace", "tail", "longest"), [("A", 6.1, 10.8), ("B", 10.7, 10.8), ("C", 16.3, 20.2)]
)
def test_traces_have_the_stated_percentiles(trace, tail, longest):
    batches = [batch(LognormalLengths(TRACES[trace], seed=seed), 256, 16) for seed in range(20)]
    medians = [np.median(each) for each in batches]
    tails = [np.percentile(each, 99) / median for each, median in zip(batches, medians, strict=True)]
    longests = [each.max() / median for each, median in zip(batches, medians, strict=True)]
    assert np.mean(tails) == pytest.approx(tail, rel=0.05)
    assert np.mean(longests) == pytest.approx(longest, rel=0.05)
    assert all(each.max() <= 16_384 for each in batches)


def test_trace_d_is_as_rollpacker_describes_its_batches():
    batches = [batch(LognormalLengths(TRACES["D"], seed=seed), 128, 8) for seed in range(60)]
    assert 755 <= np.mean([np.percentile(each, 75) for each in batches]) <= 1100
    assert 25 <= np.mean([each.max() / np.median(each) for each in batches]) <= 32
    assert np.mean([np.median(each) for each in batches]) == pytest.approx(550, rel=0.06)


def test_a_length_depends_on_seed_group_and_member_only():
    forwards, backwards = (LognormalLengths(TRACES["B"], seed=5) for _ in range(2))
    narrow = batch(forwards, 600, 4)
    wide = np.array(
        [[backwards.tokens(group, member) for member in range(20)] for group in range(599, -1, -1)]
    )
    assert (narrow == wide[::-1, :4]).all()
    assert (narrow != batch(LognormalLengths(TRACES["B"], seed=6), 600, 4)).any()


def test_completions_of_a_prompt_are_alike_in_every_epoch():
    distribution = LengthDistribution(median=1000, prompt_spread=1.0, completion_spread=0.0)
    lengths = LognormalLengths(distribution, prompts=100)
    first = batch(lengths, 100, 2)
    assert (first == batch(lengths, 100, 2, first=300)).all()
    assert (first[:, 0] == first[:, 1]).all()
    assert len(set(first[:, 0])) > 90


def test_lengths_of_a_real_run_are_read_in_its_order(tmp_path):
    lines = [
        {"step": 1, "group": 9, "member": 1, "tokens": 4, "response": "x"},
        {"step": 1, "group": 9, "member": 0, "tokens": 3},
        {"step": 0, "group": 10, "member": 0, "tokens": 7},
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    lengths = RecordedLengths.read(path)
    assert (lengths.group_count, lengths.cap) == (2, 7)
    assert [lengths.tokens(0, 0), lengths.tokens(1, 0), lengths.tokens(1, 1)] == [7, 3, 4]
    assert [lengths.tokens(3, 0), lengths.tokens(3, 2)] == [3, 3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "got no rollout in"),
        ("{", "rollouts.jsonl:1 is not JSON"),
        ("[1]", "rollouts.jsonl:1: got list, allowed is an object"),
        ('{"group": 1, "member": 0}', "rollouts.jsonl:1: tokens is None, allowed is an integer >= 1"),
        ('{"group": 1, "member": 0, "tokens": 0}', "tokens is 0, allowed is an integer >= 1"),
    ],
)
def test_a_file_that_is_no_rollouts_file_is_refused(tmp_path, text, says):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(text)
    with pytest.raises(SimulationError, match=says):
        RecordedLengths.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SimulationError, match=r"cannot read .*nowhere"):
        RecordedLengths.read(tmp_path / "nowhere")
