import pickle

import numpy as np
import pytest
from roll_agentic import Segment, TranscriptError


def sampled(**changes: object) -> Segment:
    fields = {
        "source": "sampled",
        "token_ids": [5, 6, 7],
        "logprobs": [-0.5, -1.0, -2.0],
        "versions": ((1, 2), (2, 1)),
        "finish_reason": "length",
    }
    return Segment(**fields | changes)  # type: ignore[arg-type]


def test_segment_keeps_its_own_read_only_arrays() -> None:
    ids, logprobs = np.array([5, 6, 7]), np.array([-0.5, -1.0, -2.0])
    segment = sampled(token_ids=ids, logprobs=logprobs)
    ids[0] = 9
    logprobs[0] = 0
    assert segment.token_ids.tolist() == [5, 6, 7]
    assert segment.logprobs.tolist() == [-0.5, -1.0, -2.0]
    assert (segment.token_ids.dtype, segment.logprobs.dtype) == (np.int32, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        segment.token_ids[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        segment.logprobs[0] = 1


def test_segment_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(sampled()))
    assert copy.token_ids.tolist() == [5, 6, 7]
    assert copy.versions == ((1, 2), (2, 1))


@pytest.mark.parametrize(
    ("tokens", "versions", "reason"),
    [
        (0, (), "stop"),
        (1, ((1, 1),), "stop"),
        (2, ((1, 2),), "stop"),
        (3, ((1, 2), (2, 1)), "length"),
    ],
)
def test_head_cuts_logprobs_and_versions_alike(tokens: int, versions: tuple, reason: str) -> None:
    head = sampled().head(tokens)
    assert head.token_ids.tolist() == [5, 6, 7][:tokens]
    assert head.logprobs.tolist() == [-0.5, -1.0, -2.0][:tokens]
    assert head.versions == versions
    assert head.finish_reason == reason


@pytest.mark.parametrize("tokens", [-1, 4])
def test_head_cannot_be_longer_than_the_segment(tokens: int) -> None:
    with pytest.raises(TranscriptError, match=f"cannot keep {tokens} tokens of a sampled segment with 3"):
        sampled().head(tokens)


def test_context_is_never_cut() -> None:
    with pytest.raises(TranscriptError, match="of a environment segment"):
        Segment(source="environment", token_ids=np.array([1])).head(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "model"}, "one of template, environment, sampled; got 'model'"),
        ({"source": "template"}, "only sampled segments have logprobs, versions and finish_reason"),
        ({"logprobs": [-0.5, -1.0]}, "3 tokens needs 3 finite logprobs, got an array of shape (2,)"),
        ({"logprobs": [-0.5, -1.0, float("nan")]}, "needs 3 finite logprobs"),
        ({"versions": ((1, 2),)}, "add up to 3 tokens, got ((1, 2),)"),
        ({"versions": ((1, 3), (2, 0))}, "add up to 3 tokens"),
        ({"finish_reason": None}, "needs a finish_reason, one of stop, length, abort; got None"),
        ({"token_ids": [5, -1, 7]}, "the token id at position 1 is -1, out of range"),
        ({"token_ids": [5, 6, 2**31]}, "the token id at position 2 is 2147483648, out of range"),
        ({"token_ids": [0.5, 1.0, 2.0]}, "a sequence of whole numbers"),
        ({"token_ids": [[5, 6, 7]]}, "a sequence of whole numbers"),
    ],
)
def test_segment_that_contradicts_itself_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(TranscriptError) as caught:
        sampled(**changes)
    assert message in str(caught.value)
