"""Sampling parameters, requests, completions and version runs refuse what contradicts itself."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_rollout import (
    Completion,
    EngineClosed,
    EngineError,
    GenerateRequest,
    PromptTooLong,
    SamplingError,
    SamplingParams,
    VersionRuns,
    WeightMismatch,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("min_p", 1.0),
        ("min_p", -0.5),
        ("stop_token_ids", (3, -1)),
        ("stop", ("",)),
        ("stop", "text"),
    ],
)
def test_sampling_parameter_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(SamplingError) as error:
        SamplingParams(**({"max_tokens": 4} | {field: value}))
    assert f"SamplingParams.{field}: got {value!r}" in str(error.value)
    assert "allowed is" in str(error.value)


@pytest.mark.parametrize(
    ("changed", "full"), [({}, True), ({"top_k": 3}, False), ({"top_p": 0.9}, False), ({"min_p": 0.1}, False)]
)
def test_full_distribution_means_that_no_filter_is_on(changed, full):
    assert SamplingParams(max_tokens=1, temperature=0.5, **changed).full_distribution is full


def request(**changed) -> GenerateRequest:
    fields = {
        "id": "7/0",
        "prompt_ids": np.array([1, 2]),
        "seed": 1,
        "sampling": SamplingParams(max_tokens=1),
    }
    return GenerateRequest(**(fields | changed))


def test_request_takes_any_integer_array_as_int32():
    for dtype in (np.int64, np.uint8, np.int32):
        assert request(prompt_ids=np.array([3, 4], dtype=dtype)).prompt_ids.dtype == np.int32


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_ids": np.array([], dtype=np.int32)},
        {"prompt_ids": np.array([1.5])},
        {"prompt_ids": np.array([[1, 2]])},
        {"prompt_ids": np.array([-1])},
        {"prompt_ids": np.array([2**31])},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_wrong_request_is_refused_by_its_id(changed):
    with pytest.raises(EngineError, match="request '7/0'"):
        request(**changed)


def completion(**changed) -> Completion:
    fields = {
        "request_id": "7/0",
        "prompt_ids": np.array([5, 9], dtype=np.int32),
        "token_ids": np.array([8, 8, 2], dtype=np.int32),
        "logprobs": np.array([-0.1, -1.2, -0.4], dtype=np.float32),
        "versions": ((3, 2), (4, 1)),
        "finish_reason": "stop",
        "seed": 11,
    }
    return Completion(**(fields | changed))


def test_completion_knows_its_length_and_versions():
    example = completion()
    assert len(example) == 3
    assert (example.oldest_version, example.newest_version) == (3, 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": np.array([8, 8, 2])}, "token_ids is int64"),
        ({"logprobs": np.zeros(3)}, "logprobs is float64"),
        ({"logprobs": np.zeros(2, dtype=np.float32)}, "3 tokens but 2 logprobs"),
        ({"versions": ((3, 2),)}, "cover 2 of 3 tokens"),
        ({"versions": ()}, "cover 0 of 3 tokens"),
        ({"finish_reason": "eos"}, "finish_reason is 'eos'"),
        ({"prompt_ids": np.zeros((1, 2), dtype=np.int32)}, r"prompt_ids is int32\[1, 2\]"),
    ],
)
def test_completion_whose_parts_disagree_is_refused(changed, message):
    with pytest.raises(EngineError, match=message):
        completion(**changed)


def test_records_survive_pickling():
    copy = pickle.loads(pickle.dumps(completion()))
    assert copy.token_ids.tolist() == [8, 8, 2]
    assert pickle.loads(pickle.dumps(request())).prompt_ids.tolist() == [1, 2]


@pytest.mark.parametrize("kind", [EngineError, SamplingError, PromptTooLong, WeightMismatch, EngineClosed])
def test_errors_are_engine_errors_and_keep_their_message_through_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("what, got, allowed")))
    assert type(copy) is kind
    assert isinstance(copy, EngineError)
    assert str(copy) == "what, got, allowed"


@given(
    versions=st.lists(st.integers(0, 3), max_size=30),
    kept=st.integers(0, 30),
)
def test_version_runs_are_the_run_length_code_of_the_version_of_each_token(versions, kept):
    runs = VersionRuns(0)
    for index, version in enumerate(versions):
        runs.switch(version, at=index)
    kept = min(kept, len(versions))
    decoded = [version for version, length in runs.runs(kept) for _ in range(length)]
    assert decoded == versions[:kept]
    neighbours = [version for version, _ in runs.runs(kept)]
    assert all(left != right for left, right in pairwise(neighbours))


def test_completion_without_tokens_carries_the_version_that_would_have_drawn_its_first():
    runs = VersionRuns(2)
    runs.switch(5, at=0)
    assert runs.runs(0) == ((5, 0),)
    empty = completion(
        token_ids=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        versions=runs.runs(0),
        finish_reason="abort",
    )
    assert (len(empty), empty.oldest_version) == (0, 5)
