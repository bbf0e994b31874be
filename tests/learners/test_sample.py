"""Samples refuse what cannot be trained."""

import pickle

import numpy as np
import pytest
from roll_learners import LearnerError, Sample, missing_end_token


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_a_completion_becomes_prompt_then_response() -> None:
    sample = Sample.from_completion(
        ids(5, 6), ids(9, 2), np.array([-0.5, -0.25], np.float32), reward=1.0, group=3, version=7
    )
    assert sample.token_ids.tolist() == [5, 6, 9, 2]
    assert sample.response_mask.tolist() == [False, False, True, True]
    assert sample.behavior_logprobs is not None
    assert sample.behavior_logprobs.tolist() == [0, 0, -0.5, -0.25]
    assert (sample.reward, sample.group, sample.version, sample.response_tokens) == (1.0, 3, 7, 2)


def test_it_survives_pickling() -> None:
    sample = pickle.loads(pickle.dumps(Sample.from_completion(ids(5), ids(9), reward=0.5)))
    assert sample.token_ids.tolist() == [5, 9]
    assert sample.reward == 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": np.array([1, 2])}, r"token_ids is int64\[2\]"),
        ({"response_mask": np.array([False])}, r"response_mask is bool\[1\], allowed is bool\[2\]"),
        ({"behavior_logprobs": np.zeros(2)}, "behavior_logprobs is float64"),
        ({"response_mask": np.array([True, True])}, "no token before it"),
        ({"reward": float("-inf")}, "reward is -inf"),
    ],
)
def test_a_malformed_sample_is_refused(fields: dict[str, object], message: str) -> None:
    good = {"token_ids": ids(1, 2), "response_mask": np.array([False, True])}
    with pytest.raises(LearnerError, match=message):
        Sample(**(good | fields))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(LearnerError, match="prompt_ids is empty"):
        Sample.from_completion(ids(), ids(1))


def test_logprobs_must_fit_the_response() -> None:
    with pytest.raises(LearnerError, match="1 behavior_logprobs for 2 response tokens"):
        Sample.from_completion(ids(1), ids(1, 2), np.zeros(1, np.float32))


@pytest.mark.parametrize(("response", "missing"), [((7, 8), True), ((7, 2), False), ((), True)])
def test_only_a_trained_end_token_ends_a_response(response: tuple[int, ...], missing: bool) -> None:
    assert missing_end_token(Sample.from_completion(ids(5, 2, 6), ids(*response)), 2) is missing
